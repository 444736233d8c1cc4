# shellcheck shell=sh
# The units lay in /etc up to 1.19.
for unit in nvidia-cdi-refresh.service nvidia-cdi-refresh.path; do
    dpkg-maintscript-helper rm_conffile "/etc/systemd/system/$unit" 1.20.0~ nvidia-container-toolkit-base -- "$@"
done
