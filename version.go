package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// What a release build says of itself, by -ldflags "-X main.version=v1.2.3 -X main.commit=0123abc".
// Where they are empty the record counts that go build has left in the binary.
var version, commit string

// buildVersion is the version of this binary.
func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return cmp.Or(version, info.Main.Version, "(devel)")
	}
	return cmp.Or(version, "(devel)")
}

// buildCommit is the commit that this binary was made of.
func buildCommit() string {
	recorded, changed := "unknown", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				recorded = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				changed = " with changes"
			}
		}
	}
	return cmp.Or(commit, recorded+changed)
}

// versionLine is what --version shows.
func versionLine() string {
	return fmt.Sprintf("parley %s, commit %s, %s", buildVersion(), buildCommit(), runtime.Version())
}
