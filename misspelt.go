package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// settingPrefix begins the environment variables that are ours: one that there is not is misspelt.
const settingPrefix = "PARLEY_"

// failpointSetting is read by the crash tests' build alone (store/failpoint_on.go).
const failpointSetting = "PARLEY_FAILPOINT"

// orchestrated are variables that Kubernetes sets in every container of a namespace with a Service
// whose name begins with parley: nobody has misspelt them.
var orchestrated = regexp.MustCompile(`^PARLEY_(\w+_)?(SERVICE_HOST=|SERVICE_PORT(_\w+)?=|PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://|PORT_\d+_(TCP|UDP|SCTP)_(ADDR|PORT|PROTO)=)`)

// settingNames are the environment variables that the command line reads.
func settingNames(of *kong.Application) []string {
	names := []string{failpointSetting}
	for _, flag := range of.Flags {
		names = append(names, flag.Envs...)
	}
	return names
}

// misspelt says of each variable of an environment that begins like a setting and is none, which
// setting is spelt most like it.
func misspelt(environment, settings []string) []string {
	var faults []string
	for _, variable := range environment {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, settingPrefix) && !slices.Contains(settings, name) && !orchestrated.MatchString(variable) {
			faults = append(faults, fmt.Sprintf("%s is no setting, %s is", name, nearest(name, settings)))
		}
	}
	slices.Sort(faults)
	return faults
}

// nearest is the one of names that the fewest edits make of name.
func nearest(name string, names []string) string {
	return slices.MinFunc(names, func(a, b string) int { return edits(name, a) - edits(name, b) })
}

// edits counts how many letters have to be put in, left out or changed to make b of a:
// Levenshtein's distance.
func edits(a, b string) int {
	row := make([]int, len(b)+1) // from what was read of a to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j := range b {
			same := diagonal
			if a[i] != b[j] {
				same++
			}
			diagonal = row[j+1]
			row[j+1] = min(same, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
