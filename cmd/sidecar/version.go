package main

import (
	"runtime"
	"runtime/debug"

	"github.com/weir-rl/weir/pkg/sidecar"
)

// version is set by the linker for released binaries
// (-X main.version=v1.2.3); others say what the Go tool recorded.
var version string

type versionCmd struct{}

// Run prints one line.
func (versionCmd) Run(e *env) error {
	b := build()
	if b.Revision == "" {
		return e.say("sidecar %s %s %s/%s", b.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	}
	return e.say("sidecar %s %s %s %s/%s", b.Version, b.Revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func build() sidecar.Build {
	b := sidecar.Build{Version: version}
	info, ok := debug.ReadBuildInfo()
	if ok {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Revision = s.Value
			}
		}
	}
	if b.Version == "" {
		b.Version = "(devel)"
	}
	return b
}
