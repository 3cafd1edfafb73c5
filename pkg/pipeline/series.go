package pipeline

import (
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/policy"
)

// registry finds the counters of a rule without building a label on the way of
// a request: a bound of the current set maps rules to families, which outlive
// the set as long as the next one has the same rule.
type registry struct {
	metrics *metrics
	log     *slog.Logger
	values  int     // label values of callers, for each rule
	nowhere *series // descriptors of domains that no policy has

	current atomic.Pointer[bound] // of the set that was asked for last

	mu       sync.Mutex
	families map[pair]*family
}

// pair are the labels of a rule: those that do not depend on the request.
type pair struct{ domain, rule string }

func (r *registry) init(m *metrics, log *slog.Logger, values int) {
	r.metrics, r.log, r.values = m, log, values
	r.nowhere = &series{metrics: m}
	r.families = make(map[pair]*family)
}

// bound are the families of one set's rules and domains, filled as they are
// met.
type bound struct {
	set      *policy.Set
	version  string
	registry *registry
	rules    sync.Map // *policy.Rule → *family
	domains  sync.Map // *policy.Domain → *family
}

// boundTo returns the bound of a set. While requests of two sets are on their
// way they take turns in the place of the current one, which costs them the
// look-ups and nothing else.
func (r *registry) boundTo(set *policy.Set) *bound {
	if b := r.current.Load(); b != nil && b.set == set {
		return b
	}
	b := &bound{set: set, version: strconv.FormatUint(set.Version(), 10), registry: r}
	r.current.Store(b)
	return b
}

func (b *bound) rule(rule *policy.Rule) *family {
	if f, ok := b.rules.Load(rule); ok {
		return f.(*family)
	}
	f := b.registry.family(pair{rule.Domain, rule.Label(nil)})
	b.rules.Store(rule, f)
	return f
}

func (b *bound) domain(d *policy.Domain) *series {
	f, ok := b.domains.Load(d)
	if !ok {
		f = b.registry.family(pair{domain: d.Name()})
		b.domains.Store(d, f)
	}
	return f.(*family).static
}

func (r *registry) family(p pair) *family {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.families[p]
	if f == nil {
		shown := pair{strings.ToValidUTF8(p.domain, "\uFFFD"), strings.ToValidUTF8(p.rule, "\uFFFD")}
		f = &family{pair: p, registry: r, static: &series{metrics: r.metrics, pair: shown}}
		r.families[p] = f
	}
	return f
}

// prepare makes the counters of a set begin at zero, and forgets those of
// rules that the set does not have.
func (r *registry) prepare(set *policy.Set) {
	keep := make(map[pair]bool)
	for _, d := range set.Domains() {
		keep[pair{domain: d.Name()}] = true
		s := r.family(pair{domain: d.Name()}).static
		s.decided(limit.SourceNone, limit.CauseNoRule, 0)
		s.spare(0)
	}
	for _, rule := range set.Rules() {
		p := pair{rule.Domain, rule.Label(nil)}
		keep[p] = true
		s := r.family(p).static
		if rule.Unlimited {
			s.decided(limit.SourceNone, limit.CauseUnlimited, 0)
			continue
		}
		if rule.Shadow {
			for o := range shadowOutcomes {
				s.shadowed(o, 0)
			}
			continue
		}
		s.decided(limit.SourceAuthority, limit.CauseAllowed, 0)
		s.decided(limit.SourceAuthority, limit.CauseLimit, 0)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for p, f := range r.families {
		if !keep[p] {
			delete(r.families, p)
			f.forget()
		}
	}
}

// family are the series of one rule: one, unless values of callers enter the
// label.
type family struct {
	pair
	registry     *registry
	static       *series
	refundLogged atomic.Bool

	mu      sync.RWMutex
	byValue map[string]*series
}

// otherValues is the label of what comes after a rule's first values.
const otherValues = "other"

// of returns the series for a request's entries.
func (f *family) of(rule *policy.Rule, entries []limit.Entry) *series {
	label := rule.Label(entries)
	if label == f.rule {
		return f.static
	}
	label = clean(label)
	f.mu.RLock()
	s := f.byValue[label]
	if s == nil && len(f.byValue) >= f.registry.values {
		s = f.byValue[otherValues]
	}
	f.mu.RUnlock()
	if s != nil {
		return s
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.byValue) >= f.registry.values {
		label = otherValues
	}
	if s = f.byValue[label]; s == nil {
		s = &series{metrics: f.registry.metrics, pair: pair{f.static.domain, strings.Clone(label)}}
		if f.byValue == nil {
			f.byValue = make(map[string]*series)
		}
		f.byValue[s.rule] = s
	}
	return s
}

// maxLabel is the length at which the values of callers are cut: long enough
// for what people look at, and no way to fill the memory.
const maxLabel = 200

// clean makes a text with values of callers fit for a label.
func clean(label string) string {
	cut := ""
	if len(label) > maxLabel {
		label, cut = label[:maxLabel], "…"
	}
	return strings.ToValidUTF8(label, "\uFFFD") + cut
}

// logRefund says once for each rule that its refunds are not trusted.
func (f *family) logRefund() {
	if !f.refundLogged.Load() && f.refundLogged.CompareAndSwap(false, true) {
		f.registry.log.Warn("a refund gives nothing back, because its rule does not trust refunds",
			"domain", f.static.domain, "rule", f.static.rule)
	}
}

func (f *family) forget() {
	f.static.forget()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.byValue {
		s.forget()
	}
}

// series are the counters of one pair of labels, each made when it is first
// needed.
type series struct {
	pair
	metrics    *metrics
	decisions  [limit.SourceLocal + 1][limit.CauseAllowedByMode + 1]lazy
	shadow     [shadowOutcomes]lazy
	unrecorded lazy
	untrusted  lazy
	spared     lazy // of a domain's own series, which has no rule
}

// lazy is a counter that exists once it has been needed.
type lazy struct {
	made atomic.Pointer[prometheus.Counter]
}

func (l *lazy) add(n float64, vec *prometheus.CounterVec, labels ...string) {
	c, err := vec.GetMetricWithLabelValues(labels...)
	if err != nil {
		return // a label that is no text; clean leaves none
	}
	l.made.Store(&c)
	c.Add(n)
}

func (s *series) decided(source limit.Source, cause limit.Cause, n float64) {
	l := &s.decisions[source][cause]
	if c := l.made.Load(); c != nil {
		(*c).Add(n)
		return
	}
	l.add(n, s.metrics.decisions, s.domain, s.rule, source.String(), cause.String())
}

func (s *series) shadowed(o shadowOutcome, n float64) {
	if c := s.shadow[o].made.Load(); c != nil {
		(*c).Add(n)
		return
	}
	s.shadow[o].add(n, s.metrics.shadow, s.domain, s.rule, o.String())
}

func (s *series) unrecordedCost() {
	if c := s.unrecorded.made.Load(); c != nil {
		(*c).Inc()
		return
	}
	s.unrecorded.add(1, s.metrics.unrecorded, s.domain, s.rule)
}

func (s *series) untrustedRefund() {
	if c := s.untrusted.made.Load(); c != nil {
		(*c).Inc()
		return
	}
	s.untrusted.add(1, s.metrics.untrusted, s.domain, s.rule)
}

func (s *series) spare(n float64) {
	if c := s.spared.made.Load(); c != nil {
		(*c).Add(n)
		return
	}
	s.spared.add(n, s.metrics.spared, s.domain)
}

// forget removes what was made. Requests that are still on their way count on
// into counters that nobody reads any more.
func (s *series) forget() {
	for source := range s.decisions {
		for cause := range s.decisions[source] {
			if s.decisions[source][cause].made.Load() != nil {
				s.metrics.decisions.DeleteLabelValues(s.domain, s.rule, limit.Source(source).String(), limit.Cause(cause).String())
			}
		}
	}
	for o := range s.shadow {
		if s.shadow[o].made.Load() != nil {
			s.metrics.shadow.DeleteLabelValues(s.domain, s.rule, shadowOutcome(o).String())
		}
	}
	s.metrics.unrecorded.DeleteLabelValues(s.domain, s.rule)
	s.metrics.untrusted.DeleteLabelValues(s.domain, s.rule)
	if s.spared.made.Load() != nil {
		s.metrics.spared.DeleteLabelValues(s.domain)
	}
}
