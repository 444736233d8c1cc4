module gpuops.nvidia/lab/cri

go 1.26.0

// The versions that containerd has (lab/tools.py): what was compiled for that serves here too.
require (
	google.golang.org/grpc v1.80.0
	k8s.io/cri-api v0.36.3
)

require (
	golang.org/x/net v0.55.0 // indirect
	golang.org/x/sys v0.46.0 // indirect
	golang.org/x/text v0.38.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260406210006-6f92a3bedf2d // indirect
	google.golang.org/protobuf v1.36.12-0.20260120151049-f2248ac996af // indirect
)
