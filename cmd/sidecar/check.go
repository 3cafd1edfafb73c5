package main

import (
	"fmt"
	"strings"

	"github.com/weir-rl/weir/pkg/policy"
)

type checkCmd struct {
	Paths        []string `arg:"" name:"path" help:"Policy files, and directories of them."`
	Strict       bool     `help:"Refuse what only deserves a warning."`
	MergeDomains bool     `name:"merge-domains" help:"Let several files have the same domain, as policy.merge_domains does."`
}

// Run prints everything there is to say about the files on standard error, and
// one line on standard output when they can be used.
func (c *checkCmd) Run(e *env) error {
	set, faults := policy.Load(c.Paths, policy.Options{Strict: c.Strict, MergeDomains: c.MergeDomains})
	for _, f := range faults {
		e.complain(faultLine(f))
	}
	if set == nil {
		e.complain(countLine(len(faults.Of(policy.SeverityError)), len(faults.Of(policy.SeverityWarning))))
		return exitCode(exitFailed)
	}
	line := fmt.Sprintf("ok: %d %s, %d %s", len(set.Domains()), plural(len(set.Domains()), "domain"),
		len(set.Rules()), plural(len(set.Rules()), "rule"))
	if set.Version() != 0 {
		line += fmt.Sprintf(", version %d", set.Version())
	}
	if n := len(faults.Of(policy.SeverityWarning)); n > 0 {
		line += fmt.Sprintf(", %d %s", n, plural(n, "warning"))
	}
	return e.say("%s", line)
}

// faultLine is a fault with its value, unless its message shows it already.
func faultLine(f policy.Fault) string {
	if f.Value != "" && !strings.Contains(f.Message, f.Value) {
		f.Message = fmt.Sprintf("%s: %q", f.Message, f.Value)
	}
	return f.Error()
}

// countLine is the last line of a list of faults.
func countLine(faults, warnings int) string {
	line := fmt.Sprintf("%d %s", faults, plural(faults, "fault"))
	if warnings > 0 {
		line += fmt.Sprintf(", %d %s", warnings, plural(warnings, "warning"))
	}
	return line
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}
