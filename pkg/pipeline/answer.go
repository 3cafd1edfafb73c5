package pipeline

import (
	"context"
	"math"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/policy"
)

// answer turns the verdicts into the outcome and one status per descriptor.
func (p *Pipeline) answer(_ context.Context, d *Decision) {
	if d.bad {
		d.Code, d.Source, d.Cause, d.Retry = OverLimit, limit.SourceLocal, limit.CauseMalformed, -1
		for range d.Request.Descriptors {
			d.Statuses = append(d.Statuses, Status{Code: OverLimit})
		}
		return
	}
	denied := d.denied()
	for i := range d.Checks {
		settle(&d.Checks[i], denied)
	}
	for first, end := 0, 0; first < len(d.met); first = end {
		for end = first; end < len(d.met) && d.met[end].desc == d.met[first].desc; end++ {
		}
		d.Statuses = append(d.Statuses, d.status(d.met[first:end]))
	}
	if denied {
		d.deny()
	} else {
		d.allow()
	}
}

// spare makes a denial an allow while its domain does not enforce. Everything
// else stays as it would be: what was debited and counted, the statuses, and
// who decided and why (semantics S8).
func (p *Pipeline) spare(_ context.Context, d *Decision) {
	if d.Code != OverLimit || p.enforces(d.Request.Domain) {
		return
	}
	d.Code, d.Spared, d.Unavailable, d.Retry = OK, true, false, -1
	d.domainSeries(p.metrics).spare(1)
}

// settle gives a verdict its last words. A denied request evaluates no shadow
// checks, also those that were decided without the authority (semantics S8);
// and what allowed is called by what it was.
func settle(c *limit.Check, denied bool) {
	v := &c.Verdict
	switch {
	case c.Kind == limit.Shadow && denied:
		*v = limit.Verdict{Outcome: limit.NotEvaluated}
	case v.Outcome == limit.NotEvaluated:
	case c.Kind == limit.Shadow:
		v.Cause = limit.CauseShadow
	case c.Kind == limit.Refund:
		v.Cause = limit.CauseRefund
	case c.Cost == 0 && v.Cause == limit.CauseAllowed:
		v.Cause = limit.CausePeek
	}
}

// status is the answer to one descriptor, which met these (semantics S18).
func (d *Decision) status(all []met) Status {
	s := Status{Code: OK}
	var c *limit.Check
	for i := range all {
		switch m := &all[i]; m.cause {
		case limit.CauseNone:
			c = shown(c, &d.Checks[m.check])
		case limit.CauseUnlimited:
			s.Remaining = math.MaxUint32
		}
	}
	if c == nil {
		return s
	}
	s.Remaining = 0
	v := &c.Verdict
	switch {
	case v.Outcome == limit.NotEvaluated:
		return s
	case v.Outcome == limit.Allow && v.Source == limit.SourceFallback:
		return s // nobody knows the numbers
	case denies(c):
		s.Code = OverLimit
	}
	s.limit(d.met[c.Tag].rule)
	if v.Outcome == limit.Allow {
		s.Remaining = uint32(min(max(0, v.Remaining), math.MaxUint32))
	}
	if v.Reset >= 0 {
		s.ResetSeconds = max(1, (v.Reset+999)/1000)
	}
	return s
}

// shown returns which of two checks of a descriptor its status shows: the one
// that denies with the longer retry, else the tighter one, and one that was
// evaluated before one that was not.
func shown(a, b *limit.Check) *limit.Check {
	switch {
	case a == nil:
		return b
	case denies(a) && denies(b):
		return longer(a, b)
	case denies(b), a.Verdict.Outcome == limit.NotEvaluated:
		return b
	case denies(a), b.Verdict.Outcome == limit.NotEvaluated:
		return a
	}
	return tighter(a, b)
}

// denies says that the check is over its limit and shows so.
func denies(c *limit.Check) bool { return c.Verdict.Outcome == limit.Deny && c.Kind != limit.Shadow }

// limit sets the numbers of current_limit: those that are configured.
func (s *Status) limit(r *policy.Rule) {
	s.Rule, s.HasLimit = r, true
	s.Name, s.RequestsPerUnit, s.Unit, s.Multiplier = r.Name, r.RequestsPerUnit, r.Unit, r.Multiplier
}

// deny names the denying check whose wait is the longest, or the first one
// that no wait helps; the first descriptor wins a tie (semantics S3, S18).
//
// The quota checks of a request are together one check that denies when all of
// them do (semantics S7). It would fit as soon as one of them would, so it
// stands here with the shortest of their waits.
func (d *Decision) deny() {
	var named, quota *limit.Check
	for i := range d.Checks {
		c := &d.Checks[i]
		if c.Verdict.Outcome != limit.Deny {
			continue
		}
		switch c.Kind {
		case limit.Enforced:
			named = longer(named, c)
		case limit.Quota:
			quota = shorter(quota, c)
		}
	}
	group := d.quotaDenied()
	if group {
		named = longer(named, quota)
	}
	d.Code, d.Retry = OverLimit, named.Verdict.Retry
	d.name(named)
	for i := range d.Checks {
		c := &d.Checks[i]
		if c.Verdict.Outcome == limit.Deny && (c.Kind == limit.Enforced || c.Kind == limit.Quota && group) {
			d.Unavailable = d.Unavailable || c.Verdict.Cause == limit.CauseUnavailable || c.Verdict.Cause == limit.CauseOverload
		}
	}
}

// longer returns the check with the longer wait; none is the longest.
func longer(a, b *limit.Check) *limit.Check {
	switch {
	case a == nil:
		return b
	case wait(a) == wait(b):
		return earlier(a, b)
	case wait(a) > wait(b):
		return a
	}
	return b
}

// shorter returns the check with the shorter wait.
func shorter(a, b *limit.Check) *limit.Check {
	switch {
	case a == nil:
		return b
	case wait(a) == wait(b):
		return earlier(a, b)
	case wait(a) < wait(b):
		return a
	}
	return b
}

// wait is the retry of a denying check, the longest of all for none.
func wait(c *limit.Check) int64 {
	if c.Verdict.Retry < 0 {
		return math.MaxInt64
	}
	return c.Verdict.Retry
}

func earlier(a, b *limit.Check) *limit.Check {
	if b.Tag < a.Tag {
		return b
	}
	return a
}

func (d *Decision) name(c *limit.Check) {
	d.Rule, d.Source, d.Cause = d.met[c.Tag].rule, c.Verdict.Source, c.Verdict.Cause
}

// allow names the check with the tightest numbers: the lowest remaining, then
// the longest reset, then the first descriptor. Enforced and quota checks come
// before what cannot deny, and what has a check before what has none.
func (d *Decision) allow() {
	d.Code = OK
	var named *limit.Check
	for i := range d.Checks {
		c := &d.Checks[i]
		if c.Verdict.Outcome == limit.Allow || c.Kind == limit.Shadow {
			named = tighter(named, c)
		}
	}
	if named != nil {
		d.name(named)
		return
	}
	d.Cause = limit.CauseNoRule
	for i := range d.met {
		switch m := &d.met[i]; m.cause {
		case limit.CauseUnlimited:
			d.Rule, d.Cause = m.rule, m.cause
			return
		case limit.CauseReplaced:
			d.Cause = m.cause
		}
	}
}

func tighter(a, b *limit.Check) *limit.Check {
	if a == nil {
		return b
	}
	if x, y := standing(a), standing(b); x != y {
		if y < x {
			return b
		}
		return a
	}
	v, w := &a.Verdict, &b.Verdict
	switch {
	case w.Remaining < v.Remaining, w.Remaining == v.Remaining && w.Reset > v.Reset:
		return b
	case w.Remaining == v.Remaining && w.Reset == v.Reset:
		return earlier(a, b)
	}
	return a
}

// standing ranks the checks of an allowed request for being named.
func standing(c *limit.Check) int {
	switch {
	case c.Kind == limit.Shadow:
		return 3
	case c.Kind == limit.Refund:
		return 2
	case c.Verdict.Source == limit.SourceFallback:
		return 1 // allowed, but nobody knows the numbers
	}
	return 0
}
