# shellcheck shell=sh
echo "nvcc: NVIDIA (R) Cuda compiler driver (stand-in)"
echo "Cuda compilation tools, release @LEVEL@, V@RELEASE@"
