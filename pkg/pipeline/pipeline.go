// Package pipeline decides one rate-limit request. Decide shows the whole way
// on one screen; the stages are numbered as in docs/ARCHITECTURE.md.
//
// It assumes a decoded request of bounded size and gives every one an answer:
// nothing that a client can send makes Decide fail, and while the authority
// cannot answer the rules' failure modes do. A decision takes at most
// Config.Budget, apart from what an authority overruns.
//
// A Pipeline is safe for concurrent use. A Decision is filled by one goroutine
// at a time and is never shared.
package pipeline

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/pkg/fallback"
	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/policy"
)

// Defaults of Config.
const (
	// DefaultBudget leaves half of Envoy's default timeout of 20 ms to the
	// proxy, the socket and the scheduler.
	DefaultBudget = 10 * time.Millisecond

	// DefaultValuesPerRule bounds the series of a rule whose label carries
	// values of callers.
	DefaultValuesPerRule = 100
)

// wayBack is what the caller's own deadline must leave after the decision, for
// encoding and the way back: an answer that Envoy no longer waits for is an
// allow on open routes.
const wayBack = 3 * time.Millisecond

// Config are the settings of a Pipeline. It is fixed once New has taken it.
type Config struct {
	// Budget is the most time that a decision takes; 0 means DefaultBudget.
	// The caller's deadline less 3 ms bounds it too. More gives a slow store
	// more time before the failure modes answer.
	Budget time.Duration

	// UnavailableRetry is the wait that a denial as unavailable asks for; 0
	// means fallback.DefaultRetry. A longer one spares a store that comes
	// back, and keeps callers away for longer.
	UnavailableRetry time.Duration

	// ValuesPerRule is the most distinct metric labels of one rule with
	// detailed_metric or value_to_metric, after which the label is "other"; 0
	// means DefaultValuesPerRule.
	ValuesPerRule int
}

// Authority decides asks atomically: it writes every verdict and returns by
// the ask's deadline, or it leaves the verdicts undecided with the class that
// says why. After a class it may still read the ask, so that the ask and its
// checks must not be used again. It is called by many goroutines at once.
type Authority interface {
	Debit(ctx context.Context, ask *limit.Ask)
}

// Deps are what a Pipeline needs from its process.
type Deps struct {
	// Policy returns the set in force, nil until a first one is loaded. It is
	// called once for each request that does not bring its Set.
	Policy func() *policy.Set

	// Enforces says whether the domain of that name enforces now; nil means that
	// every domain does. It is called once for each request that is to be denied,
	// so it must neither wait nor allocate.
	Enforces func(domain string) bool

	Authority  Authority
	Logger     *slog.Logger          // nil discards
	Registerer prometheus.Registerer // required
	Now        func() time.Time      // for deadlines, with a monotonic reading; nil means time.Now
}

// Pipeline decides requests. Use New.
type Pipeline struct {
	policy    func() *policy.Set
	enforces  func(domain string) bool
	authority Authority
	now       func() time.Time
	budget    time.Duration
	retry     int64 // milliseconds, of a denial as unavailable
	metrics   *metrics
}

// New returns a Pipeline.
func New(cfg Config, deps Deps) *Pipeline {
	if cfg.Budget <= 0 {
		cfg.Budget = DefaultBudget
	}
	if cfg.UnavailableRetry <= 0 {
		cfg.UnavailableRetry = fallback.DefaultRetry
	}
	if cfg.ValuesPerRule <= 0 {
		cfg.ValuesPerRule = DefaultValuesPerRule
	}
	if deps.Enforces == nil {
		deps.Enforces = func(string) bool { return true }
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Pipeline{
		policy:    deps.Policy,
		enforces:  deps.Enforces,
		authority: deps.Authority,
		now:       deps.Now,
		budget:    cfg.Budget,
		retry:     cfg.UnavailableRetry.Milliseconds(),
		metrics:   newMetrics(deps.Registerer, deps.Logger, cfg.ValuesPerRule),
	}
}

// Prepare creates the metrics of a set's rules and removes those of rules that
// the set no longer has. It is to be called before the set is published, so
// that every rule's counters start at zero; without it they appear with the
// first request.
func (p *Pipeline) Prepare(set *policy.Set) { p.metrics.prepare(set) }

// Decide answers d.Request. d must be new or Reset, with its Request set.
//
// Each stage fills the verdicts of the checks that are still undecided and
// returns nothing. The numbers are those of docs/ARCHITECTURE.md; 1 and 9 are
// the caller's as well, which decodes and encodes.
func (p *Pipeline) Decide(ctx context.Context, d *Decision) {
	if d.Set == nil {
		d.Set = p.policy()
	}
	if d.Set == nil {
		d.withoutPolicy()
		return
	}
	// 2 and 3, identity and admit, come here with their packages.

	p.match(ctx, d) // 4  policy: descriptors → checks, in the order of their kinds
	p.local(ctx, d) // 4  what the rules' numbers alone decide

	// 5 and 6, negcache and lease, come here with their packages.

	p.debit(ctx, d)  // 7  authority: one atomic debit, every check or none
	p.byMode(ctx, d) // 8  fallback: what the authority left undecided
	if d.again {
		// Some keys have a newer layout and are decided by now. The others are
		// asked for once more.
		p.debit(ctx, d)  // 7
		p.byMode(ctx, d) // 8
	}

	p.answer(ctx, d) // 9  outcome and statuses
	p.count(ctx, d)
	p.spare(ctx, d) // 9  what does not enforce denies nothing
}
