//go:build race

package e2e_test

// buildFlags has the servers be checked for races where the tests are. SQLite is C that was
// translated: to check its pointer arithmetic takes half of the time and tells nothing of ours.
var buildFlags = []string{"-race", "-gcflags=modernc.org/...=-d=checkptr=0"}
