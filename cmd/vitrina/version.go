package main

import (
	"runtime"
	"runtime/debug"
)

// version is set by the build: -ldflags "-X main.version=v1.2.3".
var version = "dev"

type versionCmd struct{}

// Help is part of kong's interface.
func (versionCmd) Help() string {
	return "Example:\n  vitrina version --output json"
}

type buildInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func build() buildInfo {
	b := buildInfo{Version: version, Revision: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Revision = s.Value
			}
		}
	}
	return b
}

// Run prints the build.
func (versionCmd) Run(a *app) error {
	b := build()
	return a.print(b, []string{"VERSION", "REVISION", "GO", "PLATFORM"}, [][]string{{b.Version, b.Revision, b.Go, b.Platform}})
}
