//go:build !race

package e2e_test

// buildFlags are none: a plain build needs no C compiler.
var buildFlags []string
