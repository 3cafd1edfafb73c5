package pipeline

import (
	"context"

	"github.com/weir-rl/weir/pkg/fallback"
	"github.com/weir-rl/weir/pkg/limit"
)

// debit asks the authority for the checks that are still undecided.
//
// A request that is denied already sends only what is recorded in any case:
// refunds and what overdraws (semantics S4, S5, S11). The others are then not
// evaluated.
//
// Quota checks that were decided before do not go along. When they denied, the
// rest alone decides whether all deny, which is what the authority finds for
// the quota checks that it sees. When one of them allowed, no other can make
// the request denied: the rest goes as shadow checks, which are debited under
// the same conditions and deny nothing. (In a request that is then denied
// elsewhere such a check does not overdraw.)
func (p *Pipeline) debit(ctx context.Context, d *Decision) {
	denied, spared := d.denied(), d.quotaAllowed()
	if d.ask == nil {
		d.ask = &limit.Ask{Checks: make([]limit.Check, 0, len(d.Checks))}
	}
	a := d.ask
	a.Checks = a.Checks[:0]
	for i := range d.Checks {
		c := &d.Checks[i]
		if c.Verdict.Outcome != limit.Undecided || denied && !recorded(c) {
			continue
		}
		a.Checks = append(a.Checks, *c)
		sent := &a.Checks[len(a.Checks)-1]
		sent.Tag = int32(i)
		sent.Verdict = limit.Verdict{}
		if spared && !denied && c.Kind == limit.Quota {
			sent.Kind = limit.Shadow
		}
	}
	d.again = false
	if len(a.Checks) == 0 {
		return
	}
	if d.deadline.IsZero() {
		d.deadline = p.now().Add(p.budget)
		if t, ok := ctx.Deadline(); ok && t.Add(-wayBack).Before(d.deadline) {
			d.deadline = t.Add(-wayBack)
		}
	}
	a.Deadline, a.Denied = d.deadline, denied
	p.authority.Debit(ctx, a)
	d.learn()
}

// recorded says that the check is recorded even in a denied request.
func recorded(c *limit.Check) bool {
	switch c.Kind {
	case limit.Refund:
		return c.Cost > 0
	case limit.Enforced, limit.Quota:
		return c.Overdraw
	}
	return false
}

// quotaAllowed says that a quota check was allowed already.
func (d *Decision) quotaAllowed() bool {
	for i := range d.Checks {
		if c := &d.Checks[i]; c.Kind == limit.Quota && c.Verdict.Outcome == limit.Allow {
			return true
		}
	}
	return false
}

// learn takes over what the authority wrote.
func (d *Decision) learn() {
	failed, layout := false, false
	for i := range d.ask.Checks {
		sent := &d.ask.Checks[i]
		d.Checks[sent.Tag].Verdict = sent.Verdict
		if sent.Verdict.Outcome == limit.Undecided {
			failed = true
			layout = layout || sent.Verdict.Class == limit.ClassLayout
		}
	}
	if failed {
		// The authority may read the ask for as long as a call is on its way.
		d.ask = nil
	}
	d.again = layout && !d.asked
	d.asked = true
}

// byMode decides what the authority left undecided, each check by the failure
// mode of its rule. In a request that was denied before, what the authority
// was not asked, or did not answer, is not evaluated: the failure of a store
// makes no other answer of a denial that needed no store.
//
// A key with a newer layout says nothing about its neighbours. While the
// authority can be asked again for them, they stay undecided.
func (p *Pipeline) byMode(_ context.Context, d *Decision) {
	denied := d.denied()
	for i := range d.Checks {
		c := &d.Checks[i]
		switch {
		case c.Verdict.Outcome != limit.Undecided:
		case d.again && c.Verdict.Class != limit.ClassLayout:
		case denied:
			c.Verdict = limit.Verdict{Outcome: limit.NotEvaluated}
		default:
			mode := d.met[c.Tag].rule.OnStoreFailure
			c.Verdict = fallback.Decide(mode, c.Verdict.Class, c.Kind, p.retry)
		}
	}
}
