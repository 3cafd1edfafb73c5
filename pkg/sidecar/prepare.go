package sidecar

import (
	"errors"
	"fmt"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/policy"
)

// Prepared is what a Config names and a start needs: files, read and compiled.
type Prepared struct {
	Scheme limit.Scheme
	Set    *policy.Set

	// Notices are what an operator should know and what stops nothing: the
	// policy set's warnings and notes, and open permissions.
	Notices []Notice
}

// Notice is one of them.
type Notice struct {
	Text    string
	Warning bool // else a note
}

// Prepare reads what the config names. Nothing but files is touched, so that
// commands can use it offline. It returns every fault that it finds; with
// faults the rest of Prepared is incomplete.
func (c *Config) Prepare() (Prepared, []error) {
	var p Prepared
	var faults []error
	p.Scheme = limit.Scheme{Prefix: c.Store.KeyPrefix, Namespace: c.Store.Namespace, TenantEntry: c.Store.TenantEntry}
	if c.Store.SecretFile != "" {
		secret, warning, err := readSecret(c.Store.SecretFile)
		if err != nil {
			faults = append(faults, secretFault(c.Store.SecretFile, err))
		}
		if warning != "" {
			p.Notices = append(p.Notices, Notice{Text: "store.secret_file: " + warning, Warning: true})
		}
		p.Scheme.Secret = secret
	}
	if c.Store.Type == StoreMemory && c.Store.URL != "" {
		p.Notices = append(p.Notices, Notice{Text: "store.url: has no effect with store.type memory; remove it, or set store.type redis", Warning: true})
	}
	if len(c.Policy.Paths) == 0 && !c.Policy.AllowEmpty {
		return p, faults // Check says so.
	}
	set, all := policy.Load(c.Policy.Paths, c.policyOptions(p.Scheme))
	p.Set = set
	for _, f := range all.Of(policy.SeverityError) {
		faults = append(faults, f)
	}
	p.Notices = append(p.Notices, noticesOf(all)...)
	return p, faults
}

// policyOptions are what every policy set of the process is compiled with.
func (c *Config) policyOptions(scheme limit.Scheme) policy.Options {
	return policy.Options{
		MergeDomains: c.Policy.MergeDomains,
		AllowEmpty:   c.Policy.AllowEmpty,
		Scheme:       scheme,
		Defaults: policy.Defaults{
			Overdraw:       c.PolicyDefaults.Overdraw,
			OnStoreFailure: c.PolicyDefaults.OnStoreFailure,
		},
	}
}

// noticesOf returns the warnings and notes among faults.
func noticesOf(faults policy.Faults) []Notice {
	var notices []Notice
	for _, f := range faults {
		if f.Severity != policy.SeverityError {
			notices = append(notices, Notice{Text: f.Error(), Warning: f.Severity == policy.SeverityWarning})
		}
	}
	return notices
}

func secretFault(path string, err error) Fault {
	f := Fault{Path: "store.secret_file", Value: path, Problem: err.Error(), Mend: "name a readable file that holds the secret"}
	if w := (*wrong)(nil); errors.As(err, &w) {
		f.Problem, f.Mend = w.problem, w.mend
	}
	return f
}

// StartError is all that is wrong with what a start is given.
type StartError struct {
	Faults  []error // each a Fault or a policy.Fault
	Notices []Notice
}

// Error returns one line for each fault.
func (e *StartError) Error() string {
	return fmt.Sprintf("the start has faults:\n%v", errors.Join(e.Faults...))
}

// Unwrap returns the faults.
func (e *StartError) Unwrap() []error { return e.Faults }
