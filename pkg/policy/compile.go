package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"strconv"

	"github.com/weir-rl/weir/pkg/limit"
)

// Options are what a set is compiled with beside its files.
type Options struct {
	// MergeDomains lets several files have one domain: their top-level
	// descriptors are appended in file order. Without it that is an error.
	MergeDomains bool

	// AllowEmpty lets a set have no file and no domain. Without it that is an
	// error, since every request would be allowed (semantics S35).
	AllowEmpty bool

	// Strict makes every warning an error.
	Strict bool

	// Scheme makes the keys of the rules.
	Scheme limit.Scheme

	// Defaults are for what neither a rule nor its file says. Their zero
	// values are the product's: auto, local.
	Defaults Defaults
}

// Defaults are the process-wide defaults of rules (policy_defaults).
type Defaults struct {
	Overdraw       limit.Overdraw
	OnStoreFailure limit.Mode
}

// Compile makes one set of the files, which it takes in the order given. The
// faults are those of parsing and compiling, of all severities, in the order
// of the files and of the lines in each; the set is nil exactly when
// faults.Err() is not.
func Compile(files []*File, opts Options) (*Set, Faults) {
	c := &compiler{opts: opts, set: &Set{domains: map[string]*Domain{}}, first: map[string]*File{}}
	for _, f := range files {
		c.reports = append(c.reports, &report{file: f.Name, faults: append(Faults(nil), f.faults...)})
	}
	c.version(files)
	for i, f := range files {
		c.file, c.report = f, c.reports[i]
		c.compileFile()
	}
	for _, d := range c.set.order {
		c.unreachable(&d.root)
		d.nameRules()
	}
	c.replaceNothing()
	var all Faults
	for _, r := range c.reports {
		all = append(all, r.sorted()...)
	}
	if len(c.set.domains) == 0 && !opts.AllowEmpty && all.Err() == nil {
		all = append(all, Fault{
			Code: CodeEmptySet, Message: "the policy set is empty: no file, no domain; every request would be allowed",
			Mend: "name files or directories that hold policies; only a sidecar with policy.allow_empty starts without any",
		})
	}
	if opts.Strict {
		for i := range all {
			if all[i].Severity == SeverityWarning {
				all[i].Severity = SeverityError
			}
		}
	}
	if all.Err() != nil {
		return nil, all
	}
	d := newDigest()
	for _, f := range files {
		d.add(f.Name, f.sum)
	}
	c.set.digest = d.sum()
	return c.set, all
}

// digest covers names and contents of files, in their order.
type digest struct{ hash.Hash }

func newDigest() digest { return digest{sha256.New()} }

func (d digest) add(name string, content [sha256.Size]byte) {
	d.Write(binary.AppendUvarint(nil, uint64(len(name))))
	d.Write([]byte(name))
	d.Write(content[:])
}

func (d digest) sum() (sum [sha256.Size]byte) {
	d.Sum(sum[:0])
	return sum
}

// compiler holds what one Compile builds.
type compiler struct {
	opts    Options
	set     *Set
	first   map[string]*File // the file that introduced a domain
	reports []*report        // one for each file, in their order

	replaces []replaced

	// The current file.
	*report
	file *File
	tail *tally
	debt *tally
	mode *tally
}

// replaced is one name below replaces.
type replaced struct {
	report *report
	at     position
	path   *path
	domain *Domain
	name   string
}

// tally counts the rules of a file that one note is about.
type tally struct {
	n    int
	at   position
	path *path
}

func (t *tally) add(at position, p *path) {
	if t.n++; t.n == 1 {
		t.at, t.path = at, p
	}
}

// version takes the set's version from the files that have one, which must
// agree (semantics S35).
func (c *compiler) version(files []*File) {
	var from *File
	for i, f := range files {
		switch {
		case !f.version.set:
		case from == nil:
			from, c.set.version = f, f.version.is
		case f.version.is != from.version.is:
			c.reports[i].fault(CodeVersionMismatch, f.version.at, (*path)(nil).field("version"),
				strconv.FormatUint(f.version.is, 10), "give all files of a set the same version, or none",
				"version %d differs from version %d in %s", f.version.is, from.version.is, from.Name)
		}
	}
}

func (c *compiler) compileFile() {
	f := c.file
	c.tail, c.debt, c.mode = &tally{}, &tally{}, &tally{}
	if f.found && f.broken {
		for i, x := range c.faults {
			if x.Code == CodeWrongType { // A text or a list, as notes beside the policies are.
				c.faults[i].Mend += "; " + mendNoPolicy
			}
		}
	}
	domain := c.domain()
	if domain == nil {
		// Nobody can reach its rules, but their faults are worth knowing.
		domain = &Domain{name: f.domain.is}
	}
	for _, d := range f.descriptors {
		c.descriptor(domain, &domain.root, nil, d)
	}
	if f.defaults.mode.set {
		c.actsAsClosed(f.defaults.mode, (*path)(nil).field("defaults").field("on_store_failure"))
	}
	c.notes()
}

// mendNoPolicy is for files that may lie among the policies by chance.
const mendNoPolicy = "every file below a policy directory is one; begin its name with a dot to leave it out"

// domain returns the domain of the current file, new or known; nil when it has none.
func (c *compiler) domain() *Domain {
	f := c.file
	p := (*path)(nil).field("domain")
	if f.domain.is == "" {
		if !f.broken && !f.domain.bad {
			at := f.domain.at
			if at.line == 0 {
				at = position{1, 1}
			}
			mend := "add 'domain: …' at the top of the file"
			if f.found && len(f.descriptors) == 0 {
				mend += "; " + mendNoPolicy
			}
			c.fault(CodeEmptyDomain, at, p, "", mend, "config file cannot have empty domain")
		}
		return nil
	}
	d := c.set.domains[f.domain.is]
	switch {
	case d == nil:
		d = &Domain{name: f.domain.is}
		c.set.domains[d.name] = d
		c.set.order = append(c.set.order, d)
		c.first[d.name] = f
	case !c.opts.MergeDomains:
		c.fault(CodeDuplicateDomain, f.domain.at, p, f.domain.is,
			"use another domain, put both into one file, or merge them with policy.merge_domains (--merge-domains of check)",
			"duplicate domain %s in config file; it is in %s already", inQuotes(f.domain.is), c.first[d.name].Name)
		return nil
	}
	return d
}

func (c *compiler) descriptor(domain *Domain, in *node, above []Level, d *descriptor) {
	if d.key.is == "" && !d.key.bad {
		at := d.key.at
		if at.line == 0 {
			at = d.at
		}
		c.fault(CodeEmptyKey, at, d.path.field("key"), "", "add 'key: …', the key of an entry of Envoy's descriptor", "descriptor has empty key")
	}
	levels := append(above[:len(above):len(above)], newLevel(d))
	name := staticLabel(levels)
	n := &node{level: levels[len(levels)-1], at: d.at, path: d.path, report: c.report}
	if other := in.add(n); other != nil && d.key.is != "" {
		c.fault(CodeDuplicateKey, d.at, d.path, "", "remove one of the two, or put their descriptors under one",
			"duplicate descriptor composite key %s; the other is at %s:%d",
			inQuotes(domain.name+"."+name), other.report.file, other.at.line)
	}
	if d.share.is && !n.level.Pattern {
		c.fault(CodeShareThreshold, d.share.at, d.path.field("share_threshold"), "", "put a * into the value, or remove share_threshold",
			"share_threshold can only be used with wildcard values (containing '*'), but found key %s", inQuotes(n.level.text()))
	}
	c.list(d)
	for _, l := range d.limits() {
		n.rules = append(n.rules, c.rule(domain, levels, name, d, l))
	}
	c.set.rules = append(c.set.rules, n.rules...)
	domain.rules = append(domain.rules, n.rules...)
	c.flags(d)
	for _, b := range d.below {
		c.descriptor(domain, n, levels, b)
	}
}

// flags warns of switches that count only beside a rate_limit and stand on a
// descriptor without one. Envoy Gateway sets shadow_mode on the whole chain,
// so one that all limits below have too is fine.
func (c *compiler) flags(d *descriptor) {
	if len(d.limits()) > 0 || d.list.set {
		return
	}
	for _, s := range []struct {
		name string
		of   func(*descriptor) value[bool]
	}{
		{"shadow_mode", func(d *descriptor) value[bool] { return d.shadow }},
		{"quota_mode", func(d *descriptor) value[bool] { return d.quota }},
		{"detailed_metric", func(d *descriptor) value[bool] { return d.detailed }},
	} {
		if v := s.of(d); v.is && !allBelow(d, func(b *descriptor) bool { return s.of(b).is }) {
			c.warn(CodeNoEffect, v.at, d.path.field(s.name), "", "move it to the descriptors with a rate_limit",
				"%s has no effect on a descriptor without rate_limit; those below do not inherit it", s.name)
		}
	}
	if d.metadata.is != nil {
		c.warn(CodeNoEffect, d.metadata.at, d.path.field("metadata"), "", "move it to the descriptors with a rate_limit",
			"metadata has no effect on a descriptor without rate_limit; those below do not inherit it")
	}
}

// allBelow says whether there are limits below and all their descriptors hold.
func allBelow(d *descriptor, holds func(*descriptor) bool) bool {
	found := false
	for _, b := range d.below {
		if len(b.limits()) > 0 {
			if !holds(b) {
				return false
			}
			found = true
		}
		if len(b.below) > 0 {
			if !allBelow(b, holds) {
				return false
			}
			found = true
		}
	}
	return found
}
