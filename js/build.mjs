// Builds each widget's script and style into the Python package. The result is committed:
// the same sources and the same locked esbuild give the same bytes.
import { statSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const LIMIT = 60 * 1024; // every widget instance carries its script over the wire and into saved state
const WIDGETS = ["stream", "dashboard", "timeline"];
const out = new URL("../mlx_notebook/static/", import.meta.url).pathname;
const entries = (ending) => Object.fromEntries(WIDGETS.map((name) => [name, `src/${name}.${ending}`]));

await build({
  entryPoints: entries("ts"),
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  logLevel: "warning",
});
await build({ entryPoints: entries("css"), outdir: out, bundle: true, minify: true, logLevel: "warning" });

const sizes = {};
for (const name of WIDGETS.flatMap((widget) => [`${widget}.js`, `${widget}.css`])) {
  const { size } = statSync(`${out}${name}`);
  console.log(`${name}: ${(size / 1024).toFixed(1)} KB`);
  sizes[name] = size;
  if (size > LIMIT) throw new Error(`${name} is over ${LIMIT / 1024} KB`);
}
writeFileSync(new URL("bundle-sizes.json", import.meta.url), `${JSON.stringify(sizes, null, 2)}\n`); // a record, in bytes
