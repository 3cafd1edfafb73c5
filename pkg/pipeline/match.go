package pipeline

import (
	"context"
	"slices"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/policy"
)

// withoutPolicy denies what cannot be looked up. The caller answers
// UNAVAILABLE; the denial is for one that does not.
func (d *Decision) withoutPolicy() {
	d.Code, d.Source, d.Cause, d.Retry, d.Unavailable = OverLimit, limit.SourceLocal, limit.CauseNoPolicy, -1, true
	for range d.Request.Descriptors {
		d.Statuses = append(d.Statuses, Status{Code: OverLimit})
	}
}

// match looks the descriptors up and makes the request's checks, split once
// into refunds, enforced, quota and shadow checks (semantics S2).
func (p *Pipeline) match(_ context.Context, d *Decision) {
	d.bound = p.metrics.boundTo(d.Set)
	if d.Request.Malformed {
		d.bad = true
		return
	}
	domain := d.Set.Domain(d.Request.Domain)
	if domain == nil {
		for i := range d.Request.Descriptors {
			d.met = append(d.met, met{desc: int32(i), cause: limit.CauseNoRule, series: p.metrics.nowhere})
		}
		return
	}
	for i := range d.Request.Descriptors {
		desc := &d.Request.Descriptors[i]
		if desc.Limit != nil {
			p.metrics.overrides.Inc()
		}
		rules := domain.Match(desc.Entries)
		if len(rules) == 0 {
			d.met = append(d.met, met{desc: int32(i), cause: limit.CauseNoRule, series: d.bound.domain(domain)})
		}
		for _, r := range rules {
			m := met{desc: int32(i), rule: r, series: d.bound.rule(r).of(r, desc.Entries)}
			if r.Unlimited {
				m.cause = limit.CauseUnlimited
			}
			d.met = append(d.met, m)
		}
	}
	d.replace()
	p.split(d)
}

// replace drops the rules that others of the same request replace. Rules that
// are themselves dropped, and unlimited ones, replace too; an unlimited rule
// that others replace stays unlimited.
func (d *Decision) replace() {
	for i := range d.met {
		if d.met[i].rule == nil || len(d.met[i].rule.Replaces) == 0 {
			continue
		}
		for j := range d.met {
			m := &d.met[j]
			if m.rule != nil && !m.rule.Unlimited && slices.Contains(d.met[i].rule.Replaces, m.rule.Name) {
				m.cause = limit.CauseReplaced
			}
		}
	}
}

// split puts the checks into the order of their kinds, and of their
// descriptors and limits within each.
func (p *Pipeline) split(d *Decision) {
	var next [limit.Shadow + 1]int32 // counts first, then places
	for i := range d.met {
		if m := &d.met[i]; m.cause == limit.CauseNone {
			next[kind(m.rule, &d.Request.Descriptors[m.desc])]++
		}
	}
	n := int32(0)
	for k, count := range next {
		next[k] = n
		n += count
	}
	if n > limit.MaxChecks {
		d.bad = true
		return
	}
	d.Checks = slices.Grow(d.Checks, int(n))[:n]
	for i := range d.met {
		m := &d.met[i]
		if m.cause != limit.CauseNone {
			continue
		}
		desc := &d.Request.Descriptors[m.desc]
		k := kind(m.rule, desc)
		m.check = next[k]
		next[k]++
		c := &d.Checks[m.check]
		*c = limit.Check{Key: m.rule.Key(desc.Entries), Params: m.rule.Params, Kind: k, Tag: int32(i)}
		p.cost(d, c, m, desc)
	}
}

// negative says that the descriptor's hits are a refund. A number that is out
// of bounds is malformed, whatever its sign (semantics S1).
func (desc *Descriptor) negative() bool { return desc.Negative && !desc.outOfBounds() }

// outOfBounds is tested while the hits are unsigned: "nan" arrives as 2^63.
func (desc *Descriptor) outOfBounds() bool { return desc.HasHits && desc.Hits > limit.MaxCost }

// kind is the class of the check that a descriptor gives. A shadow rule is one
// whatever else it is: it must neither deny nor spare others.
func kind(r *policy.Rule, desc *Descriptor) limit.Kind {
	switch {
	case desc.negative():
		return limit.Refund
	case r.Shadow:
		return limit.Shadow
	case r.Quota:
		return limit.Quota
	}
	return limit.Enforced
}

// cost sets what the check takes (semantics S1, S5).
func (p *Pipeline) cost(d *Decision, c *limit.Check, m *met, desc *Descriptor) {
	switch {
	case desc.outOfBounds():
		// A check of cost 0 records nothing, with overdraw or without.
		c.Verdict = limit.Verdict{
			Outcome: limit.Deny, Source: limit.SourceLocal, Cause: limit.CauseMalformed, Reset: -1, Retry: -1,
		}
		p.metrics.malformed.Inc()
		return
	case desc.negative():
		// Anyone can have Envoy send a stream-done call, also after a denial;
		// until a rule can say that it trusts them, a refund gives nothing
		// back (semantics S12).
		m.series.untrustedRefund()
		d.bound.rule(m.rule).logRefund()
		return
	case desc.HasHits:
		c.Cost = int64(desc.Hits)
	default:
		c.Cost = max(1, int64(d.Request.HitsAddend))
	}
	c.Overdraw = c.Cost > 0 && m.rule.Overdraw.Applies(c.Params.Algorithm, desc.HasHits)
}

// local decides what the rule's numbers alone decide (semantics S4). Refunds
// on a limit of 0 end here too, since such a rule never has a state.
func (p *Pipeline) local(_ context.Context, d *Decision) {
	for i := range d.Checks {
		c := &d.Checks[i]
		if c.Verdict.Outcome != limit.Undecided {
			continue
		}
		v := limit.Verdict{Outcome: limit.Deny, Source: limit.SourceLocal, Reset: -1, Retry: -1}
		switch zero := c.Params.Limit == 0 || c.Params.Budget() == 0; {
		case zero && c.Kind == limit.Refund:
			v.Outcome, v.Cause, v.Retry = limit.Allow, limit.CauseRefund, 0
		case zero:
			v.Cause = limit.CauseZeroLimit
		case c.Cost > c.Params.Budget() && !c.Overdraw && c.Kind != limit.Refund:
			v.Cause = limit.CauseTooLarge
		default:
			continue
		}
		c.Verdict = v
	}
}
