package pipeline

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/pkg/limit"
)

// metrics are this package's. The label rule is policy.Rule's Label, "" for a
// descriptor that met no rule; domain is "" for domains that no policy has, so
// that no caller makes series.
type metrics struct {
	decisions  *prometheus.CounterVec // domain, rule, source, cause
	shadow     *prometheus.CounterVec // domain, rule, outcome
	unrecorded *prometheus.CounterVec // domain, rule
	untrusted  *prometheus.CounterVec // domain, rule
	spared     *prometheus.CounterVec // domain
	malformed  prometheus.Counter
	overrides  prometheus.Counter

	registry
}

func newMetrics(reg prometheus.Registerer, log *slog.Logger, values int) *metrics {
	m := &metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_pipeline_decisions_total",
			Help: "Checks that were decided, by who decided and why, and descriptors that gave no check. " +
				"A request counts once for each of them; a check that would have allowed a denied request counts as allowed, " +
				"one that was not evaluated does not count, and a request that is malformed as a whole counts once.",
		}, []string{"domain", "rule", "source", "cause"}),
		shadow: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_pipeline_shadow_total",
			Help: "Shadow checks by what they would have done: allowed, denied, " +
				"skipped because the request was denied by others, unavailable because the authority did not answer.",
		}, []string{"domain", "rule", "outcome"}),
		unrecorded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_pipeline_unrecorded_costs_total",
			Help: "Costs that a descriptor brought itself, and that were denied and left no trace. " +
				"If they are paid for afterwards, the rule needs overdraw: on.",
		}, []string{"domain", "rule"}),
		untrusted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_pipeline_refunds_untrusted_total",
			Help: "Refunds (is_negative_hits) that gave nothing back because their rule does not trust them.",
		}, []string{"domain", "rule"}),
		spared: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_pipeline_spared_total",
			Help: "Requests that would have been denied, and were allowed because their domain does not enforce at present. " +
				"weir_pipeline_decisions_total counts their checks as denied.",
		}, []string{"domain"}),
		malformed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_pipeline_malformed_total",
			Help: "Requests and checks that were denied as malformed.",
		}),
		overrides: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_pipeline_overrides_ignored_total",
			Help: "Limits that requests carried themselves and that were ignored; the policy's rule applied.",
		}),
	}
	m.init(m, log, values)
	reg.MustRegister(m.decisions, m.shadow, m.unrecorded, m.untrusted, m.spared, m.malformed, m.overrides)
	return m
}

// shadowOutcome is what a shadow check would have done.
type shadowOutcome uint8

const (
	shadowAllowed shadowOutcome = iota
	shadowDenied
	shadowSkipped
	shadowUnavailable
	shadowOutcomes
)

func (o shadowOutcome) String() string {
	return [...]string{"allowed", "denied", "skipped", "unavailable"}[o]
}

func outcomeOf(v *limit.Verdict) shadowOutcome {
	switch {
	case v.Outcome == limit.NotEvaluated:
		return shadowSkipped
	case v.Source == limit.SourceFallback:
		return shadowUnavailable
	case v.Outcome == limit.Deny:
		return shadowDenied
	}
	return shadowAllowed
}
