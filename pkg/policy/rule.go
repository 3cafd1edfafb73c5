package policy

import (
	"fmt"
	"strings"

	"github.com/weir-rl/weir/pkg/limit"
)

// unitNames are the units as files spell them, in any case.
var unitNames = [...]string{
	Second: "second", Minute: "minute", Hour: "hour", Day: "day", Month: "month", Year: "year", Week: "week",
}

// unitSeconds are the lengths of the units (semantics S16).
var unitSeconds = [...]int64{
	Second: 1, Minute: 60, Hour: 3600, Day: 86400, Month: 30 * 86400, Year: 365 * 86400, Week: 7 * 86400,
}

// MaxWindow is the longest window in milliseconds. Its end must fit into the
// six bytes that a stored state has for a time, for some thousand years.
const MaxWindow = 1 << 47

// String returns the unit as policy files spell it, "unknown" for none.
func (u Unit) String() string {
	if u == UnitUnknown || int(u) >= len(unitNames) {
		return "unknown"
	}
	return unitNames[u]
}

// Milliseconds returns the unit's length, 0 for an unknown one.
func (u Unit) Milliseconds() int64 {
	if int(u) >= len(unitSeconds) {
		return 0
	}
	return unitSeconds[u] * 1000
}

// ParseUnit returns the unit of that name, in any case.
func ParseUnit(s string) (Unit, bool) {
	// ToUpper rather than EqualFold, since that is how the peer compares.
	for u := Second; int(u) < len(unitNames); u++ {
		if strings.ToUpper(s) == strings.ToUpper(unitNames[u]) { //nolint:staticcheck // see above
			return u, true
		}
	}
	return UnitUnknown, false
}

// list reports what is wrong with the limits of a descriptor together: the name
// of each in a list is what tells its budget from that of the others.
func (c *compiler) list(d *descriptor) {
	p := d.path.field("rate_limits")
	if d.list.set && d.limit != nil {
		c.fault(CodeConflict, d.list.at, p, "", "move the rate_limit into the list, with a name",
			"rate_limits does not go with rate_limit on one descriptor")
	}
	switch n := len(d.list.is); {
	case d.list.set && !d.list.bad && n == 0:
		c.fault(CodeInvalidValue, d.list.at, p, "", "list limits, each as '- name: …', or remove it", "rate_limits is empty")
	case n > limit.MaxChecks:
		c.fault(CodeTooManyLimits, d.list.at, p, "", fmt.Sprintf("list at most %d", limit.MaxChecks),
			"%d limits on one descriptor are more than a request may meet, so that each would be denied as malformed", n)
	}
	named := map[string]bool{}
	for _, l := range d.list.is {
		switch name := l.name.is; {
		case l.name.bad:
		case name == "":
			c.fault(CodeMissingName, l.at, l.path.field("name"), "", "add 'name: …', which no other limit of the list has",
				"a limit of rate_limits has no name")
		case named[name]:
			c.fault(CodeDuplicateName, l.name.at, l.path.field("name"), name, "give each limit of the list a name of its own",
				"another limit of the list has the name %s too", inQuotes(name))
		}
		named[l.name.is] = true
	}
	for _, l := range d.list.is {
		for i, x := range l.replaces {
			if x.is != "" && x.is != l.name.is && named[x.is] {
				c.fault(CodeSelfReplaces, x.at, l.path.field("replaces").element(i), x.is, "name a rule of another descriptor",
					"replaces should not contain name of same descriptor: that limit would never apply")
			}
		}
	}
}

// rule compiles one limit of a descriptor. It returns a rule also when it has
// faults; the set is dropped then.
func (c *compiler) rule(domain *Domain, levels []Level, name string, d *descriptor, l *rateLimit) *Rule {
	r := &Rule{
		Domain: domain.name, Path: levels, label: name, Name: l.name.is, Unlimited: l.unlimited.is,
		Shadow: d.shadow.is, Quota: d.quota.is, Multiplier: 1, DetailedMetric: d.detailed.is, Metadata: d.metadata.is,
		File: c.file.Name, Line: d.at.line,
	}
	if l != d.limit {
		r.Line, r.suffix = l.at.line, "#"+l.name.is
		r.label += r.suffix
		if l.shadow.set {
			r.Shadow = l.shadow.is
		}
	}
	r.prepareLabel()
	path := make([]limit.PathLevel, len(levels))
	for i, v := range levels {
		path[i] = limit.PathLevel{Key: v.Key, Value: v.Value, Shared: v.Shared}
	}
	r.keys = c.opts.Scheme.Maker(r.Domain, path, r.Name)
	for i, x := range l.replaces {
		p := l.path.field("replaces").element(i)
		if x.bad {
			continue
		}
		if x.is == "" {
			c.fault(CodeEmptyReplaces, x.at, p, "", "give the name of the rule to replace, as '- name: …'", "should not have an empty replaces entry")
		} else if x.is == l.name.is {
			c.fault(CodeSelfReplaces, x.at, p, x.is, "name another rule", "replaces should not contain name of same descriptor")
		}
		r.Replaces = append(r.Replaces, x.is)
		c.replaces = append(c.replaces, replaced{c.report, x.at, p, domain, x.is})
	}
	unit, known := ParseUnit(l.unit.is)
	if r.Unlimited {
		c.unlimited(l, known)
		return r
	}
	at := l.unit.at
	if !l.unit.set {
		at = l.at
	}
	if !known && !l.unit.bad && !l.unlimited.bad && !l.bad {
		c.fault(CodeInvalidUnit, at, l.path.field("unit"), l.unit.is, "use second, minute, hour, day, week, month or year",
			"invalid rate limit unit %s", inQuotes(l.unit.is))
	}
	if !l.requests.set && !l.requests.bad {
		c.warn(CodeOmittedLimit, l.at, l.path, "", "set requests_per_unit, to 0 if that is what you want",
			"without requests_per_unit the limit is 0, which denies everything")
	}
	r.Unit, r.RequestsPerUnit = unit, l.requests.is
	if l.multiplier.set {
		if l.multiplier.is == 0 {
			c.fault(CodeInvalidValue, l.multiplier.at, l.path.field("unit_multiplier"), "0", "use 1 or more", "invalid unit_multiplier '0'")
		}
		r.Multiplier = max(1, l.multiplier.is)
	}
	r.Overdraw, r.OnStoreFailure = c.opts.Defaults.Overdraw, c.opts.Defaults.OnStoreFailure
	if v := c.file.defaults.overdraw; v.set {
		r.Overdraw = v.is
	}
	if l.overdraw.set {
		r.Overdraw = l.overdraw.is
	}
	switch {
	case l.mode.set:
		r.OnStoreFailure = l.mode.is
		c.actsAsClosed(l.mode, l.path.field("on_store_failure"))
	case c.file.defaults.mode.set:
		r.OnStoreFailure = c.file.defaults.mode.is
	case r.OnStoreFailure == limit.ModeLocal || r.OnStoreFailure == limit.ModeExempt:
		c.mode.add(d.at, l.path)
	}
	r.Params = c.params(r, l)
	return r
}

// unlimited reports what does not go with an unlimited rule: the peer's own
// fields as the peer does, ours as faults.
func (c *compiler) unlimited(l *rateLimit, unitKnown bool) {
	const mend = "remove it, or unlimited"
	switch {
	case unitKnown:
		c.fault(CodeUnitAndUnlimited, l.unit.at, l.path.field("unit"), l.unit.is, mend, "should not specify rate limit unit when unlimited")
	case l.unit.set:
		c.warn(CodeNoEffect, l.unit.at, l.path.field("unit"), l.unit.is, mend, "unit has no effect beside unlimited")
	}
	if l.requests.set {
		c.warn(CodeNoEffect, l.requests.at, l.path.field("requests_per_unit"), "", mend, "requests_per_unit has no effect beside unlimited")
	}
	for _, f := range []struct {
		name string
		set  bool
		at   position
	}{
		{"algorithm", l.algorithm.set, l.algorithm.at},
		{"burst", l.burst.set, l.burst.at},
		{"unit_multiplier", l.multiplier.set, l.multiplier.at},
		{"overdraw", l.overdraw.set, l.overdraw.at},
		{"overdraw_cap", l.overdrawCap.set, l.overdrawCap.at},
		{"on_store_failure", l.mode.set, l.mode.at},
		{"refunds", l.refunds.set, l.refunds.at},
	} {
		if f.set {
			c.fault(CodeConflict, f.at, l.path.field(f.name), "", mend, "%s does not go with unlimited", f.name)
		}
	}
}

// params compiles the numbers of a limited rule.
func (c *compiler) params(r *Rule, l *rateLimit) *limit.Params {
	p := &limit.Params{
		Algorithm: limit.FixedWindow, Version: c.set.version, Limit: int64(r.RequestsPerUnit),
		Window: r.Unit.Milliseconds(), Capacity: int64(r.RequestsPerUnit),
	}
	algorithm := c.file.defaults.algorithm
	if l.algorithm.set {
		algorithm = l.algorithm
	}
	if algorithm.set {
		p.Algorithm = algorithm.is
	}
	if p.Window > 0 && int64(r.Multiplier) > MaxWindow/p.Window {
		c.fault(CodeWindowTooLong, l.multiplier.at, l.path.field("unit_multiplier"), "", "use a shorter unit or a smaller multiplier",
			"%d × %s is longer than 4,400 years", r.Multiplier, r.Unit)
		return p
	}
	p.Window *= int64(r.Multiplier)
	if r.Overdraw == limit.OverdrawOn && (p.Algorithm == limit.SlidingLog || p.Algorithm == limit.Concurrency) {
		where := l.overdraw.at
		if !l.overdraw.set {
			where = l.at
		}
		c.fault(CodeConflict, where, l.path.field("overdraw"), "on", "use overdraw: off, or another algorithm",
			"overdraw 'on' does not go with algorithm %s", p.Algorithm)
	}
	if p.Algorithm == limit.TokenBucket {
		c.bucket(r, l, p)
		return p
	}
	p.OverdrawCap = p.Capacity
	for _, f := range []struct {
		name string
		v    value[uint32]
	}{{"burst", l.burst}, {"overdraw_cap", l.overdrawCap}} {
		if f.v.set {
			c.fault(CodeConflict, f.v.at, l.path.field(f.name), "", "remove it, or use algorithm: token_bucket",
				"%s does not go with algorithm %s", f.name, p.Algorithm)
		}
	}
	switch {
	case p.Algorithm == limit.SlidingLog && p.Limit > limit.MaxLog:
		c.fault(CodeInvalidValue, l.requests.at, l.path.field("requests_per_unit"), "", "use algorithm: sliding_window, or a smaller number",
			"a sliding_log keeps every hit of its window: %d are more than %d", p.Limit, limit.MaxLog)
	case p.Algorithm == limit.SlidingWindow && p.Window > limit.MaxSlidingWindow:
		c.fault(CodeWindowTooLong, l.multiplier.at, l.path.field("unit_multiplier"), "", "use a shorter unit, a smaller multiplier, or another algorithm",
			"%d × %s is longer than 795 days, the longest sliding_window", r.Multiplier, r.Unit)
	case p.Algorithm == limit.FixedWindow && p.Limit > 0:
		c.tail.add(l.at, l.path)
	}
	if p.Window > 0 {
		// An inexact rate serves only a sidecar that meets a bucket of a newer
		// policy version, so it is no fault here.
		p.Rate(p.Limit, p.Window)
	}
	return p
}

// bucket compiles what only token buckets have.
func (c *compiler) bucket(r *Rule, l *rateLimit, p *limit.Params) {
	if l.burst.set {
		p.Capacity = int64(l.burst.is)
		switch {
		case l.burst.is == 0:
			c.fault(CodeInvalidValue, l.burst.at, l.path.field("burst"), "0", "use 1 or more; requests_per_unit: 0 denies everything", "invalid burst '0'")
		case p.Limit == 0:
			c.fault(CodeConflict, l.burst.at, l.path.field("burst"), "", "set requests_per_unit, or remove burst",
				"burst does not go with requests_per_unit 0: the bucket would never fill again")
		}
	}
	p.OverdrawCap = p.Capacity
	if l.overdrawCap.set {
		p.OverdrawCap = int64(l.overdrawCap.is)
		if r.Overdraw == limit.OverdrawOff {
			c.warn(CodeNoEffect, l.overdrawCap.at, l.path.field("overdraw_cap"), "", "remove it, or use overdraw: on",
				"overdraw_cap has no effect with overdraw 'off'")
		}
	}
	if p.Window > 0 && !p.Rate(p.Limit, p.Window) {
		c.fault(CodeInexactRate, l.at, l.path, "", "use a smaller burst or overdraw_cap, or a rate with a shorter fraction of tokens per millisecond",
			"%d per %d × %s cannot be counted exactly with %d tokens of burst and %d of overdraw: (burst + overdraw_cap) × 1000 × %d is not below 2^53",
			p.Limit, r.Multiplier, r.Unit, p.Capacity, p.OverdrawCap, exactDen(p.Limit, p.Window))
	}
	if r.Overdraw == limit.OverdrawAuto && p.Limit > 0 {
		c.debt.add(l.at, l.path)
	}
}

// exactDen is the denominator of limit/window in millitokens per millisecond.
func exactDen(limit, window int64) int64 {
	a, b := limit*1000, window
	for b != 0 {
		a, b = b, a%b
	}
	return window / a
}
