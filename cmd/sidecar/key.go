package main

import (
	"errors"
	"fmt"

	"github.com/alecthomas/kong"

	"github.com/weir-rl/weir/pkg/policy"
	"github.com/weir-rl/weir/pkg/sidecar"
)

type keyCmd struct {
	Config     string   `placeholder:"FILE" help:"The sidecar's settings, sidecar.yaml."`
	Domain     string   `required:"" help:"The domain of the request."`
	Descriptor []string `required:"" sep:"none" placeholder:"K=V,K=V" help:"${descriptor_help} Can be repeated."`

	flags func() settings
	kong.Plugins
}

// Run prints one line for each limit of each descriptor: the key, the rule and
// where it stands. The key depends on policy files and on the settings below store that
// make keys; the store itself is not asked.
func (c *keyCmd) Run(e *env) error {
	s, found := loadSettings(e, c.Config, c.flags())
	var faults []error
	for _, f := range found {
		// What is missing for a process that serves is no fault here.
		if f.Place != "" || f.Path == "policy.paths" {
			faults = append(faults, f)
		}
	}
	p, more := s.Config.Prepare()
	if faults = append(faults, more...); len(faults) > 0 {
		return e.refuse(faults, p.Notices)
	}
	domain := p.Set.Domain(c.Domain)
	if domain == nil {
		return fmt.Errorf("no policy file has the domain %q", c.Domain)
	}
	missed := 0
	for _, text := range c.Descriptor {
		entries, err := parseDescriptor(text)
		if err != nil {
			return err
		}
		rules := domain.Match(entries)
		if len(rules) == 0 {
			missed++
			e.complain(fmt.Errorf("descriptor %q: no rule of domain %q matches", text, c.Domain))
		}
		for _, rule := range rules {
			if rule.Unlimited {
				missed++
				e.complain(fmt.Errorf("descriptor %q: rule %s (%s:%d) is unlimited and has no key", text, rule.ID, rule.File, rule.Line))
				continue
			}
			key := rule.Key(entries)
			if err := e.say("%s\t%s\t%s:%d", key.Append(nil, p.Scheme.Prefix), rule.ID, rule.File, rule.Line); err != nil {
				return err
			}
		}
	}
	if missed > 0 {
		return exitCode(exitFailed)
	}
	return nil
}

// refuse prints all faults and warnings and ends the command.
func (e *env) refuse(faults []error, notices []sidecar.Notice) error {
	for _, f := range faults {
		if p := (policy.Fault{}); errors.As(f, &p) {
			e.complain(faultLine(p))
			continue
		}
		e.complain(f)
	}
	warnings := 0
	for _, n := range notices {
		if n.Warning {
			warnings++
			e.complain(n.Text)
		}
	}
	e.complain(countLine(len(faults), warnings))
	return exitCode(exitFailed)
}
