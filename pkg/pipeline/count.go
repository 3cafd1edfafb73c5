package pipeline

import (
	"context"

	"github.com/weir-rl/weir/pkg/limit"
)

// count counts every check that was decided, and every descriptor and limit
// without one.
func (p *Pipeline) count(_ context.Context, d *Decision) {
	if d.bad {
		p.metrics.malformed.Inc()
		d.domainSeries(p.metrics).decided(d.Source, d.Cause, 1)
		return
	}
	for i := range d.met {
		if m := &d.met[i]; m.cause != limit.CauseNone {
			m.series.decided(limit.SourceNone, m.cause, 1)
			continue
		}
		c := &d.Checks[d.met[i].check]
		s := d.met[i].series
		if c.Kind == limit.Shadow {
			s.shadowed(outcomeOf(&c.Verdict), 1)
		}
		if c.Verdict.Outcome != limit.NotEvaluated {
			s.decided(c.Verdict.Source, c.Verdict.Cause, 1)
		}
		if d.Request.Descriptors[d.met[i].desc].HasHits && refused(c) {
			s.unrecordedCost()
		}
	}
}

// domainSeries are the series of the request's domain as a whole.
func (d *Decision) domainSeries(m *metrics) *series {
	if domain := d.Set.Domain(d.Request.Domain); domain != nil {
		return d.bound.domain(domain)
	}
	return m.nowhere
}

// refused says that a limit refused the check's cost and that nothing of it
// was recorded.
func refused(c *limit.Check) bool {
	cause := c.Verdict.Cause
	return c.Verdict.Outcome == limit.Deny && c.Kind != limit.Shadow && c.Cost > 0 && !c.Overdraw &&
		(cause == limit.CauseLimit || cause == limit.CauseTooLarge)
}
