# Sourced after common.sh: what `test`, `lint` and `wheel` need. Does nothing twice in one run of CI.
if [ -z "${MLX_NOTEBOOK_INSTALLED:-}" ]; then
  apt_install libopenblas0-pthread chromium
  make_venv
  install_project test,docs
  if ! is_linux && [ ! -d "/Applications/Google Chrome.app" ]; then
    "$venv/bin/python" -m playwright install chromium
  fi
  export MLX_NOTEBOOK_INSTALLED=1
fi
