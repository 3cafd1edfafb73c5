// Package limit is the arithmetic of rate limits: what a rule's numbers are
// (Params), where its state lives (Key), what is stored (State), what one
// request asks (Ask, Check) and what is answered (Verdict).
//
// It is pure: standard library only, no I/O, no goroutine, no clock. Time is
// always an argument, in milliseconds since the Unix epoch as the store's
// clock shows it. Evaluate is the one statement of how the checks of a request
// are decided together; pkg/memory runs it, and the Redis script in
// pkg/authority is held equal to it by random differential tests.
//
// Nothing here is safe for concurrent use by itself; callers own their values.
package limit

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Algorithm says how a rule counts. The values are the first byte of a stored
// state, so they never change.
type Algorithm uint8

// The algorithms. A stored state of a concurrency limit is known (its layout is
// fixed in state.go), but not decided.
const (
	FixedWindow   Algorithm = 'F'
	TokenBucket   Algorithm = 'B'
	SlidingWindow Algorithm = 'S'
	SlidingLog    Algorithm = 'L'
	Concurrency   Algorithm = 'C'
)

// String returns the name that policy files use.
func (a Algorithm) String() string {
	switch a {
	case FixedWindow:
		return "fixed_window"
	case TokenBucket:
		return "token_bucket"
	case SlidingWindow:
		return "sliding_window"
	case SlidingLog:
		return "sliding_log"
	case Concurrency:
		return "concurrency"
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// Exact is the first integer that a Lua number (an IEEE double) cannot tell
// from its successor. Every product that the script forms stays below it.
const Exact = 1 << 53

// MaxCost is the largest cost of one check (semantics S1): Envoy's own bound
// for a descriptor's hits_addend is 1e9, the request-level field has 32 bits.
const MaxCost = math.MaxUint32

// MaxVersion is the largest policy version; six bytes of a state hold it.
const MaxVersion = 1<<48 - 1

// Params are the numbers of one rule. They are immutable once compiled: two
// checks with the same *Params belong to the same revision of the rule.
//
// Every rule compiles all of them, whatever its algorithm, because a sidecar
// with an older policy version runs the stored algorithm with its own numbers
// (semantics S14).
type Params struct {
	Algorithm Algorithm

	// Version is the version of the policy set, 0 when the set has none.
	Version uint64

	// Limit is what one window admits, in hits; that of a sliding log is at
	// most MaxLog.
	Limit int64

	// Window is the length of a window in milliseconds; windows begin at
	// multiples of it since the epoch (semantics S16). 0 < Window <= 1<<47, so
	// that until the year 6429 its end fits into the six bytes of a stored time;
	// that of a sliding window, as long as a calendar makes it, is at most
	// MaxSlidingWindow.
	Window int64

	// CalendarCode is the code of a calendar unit that stands for the length
	// in a stored state, 0 for windows of a fixed length. With a code, Bounds
	// gives the three boundaries around now: the begin of now's window, its
	// end, and the end of the next one, in milliseconds since the epoch.
	CalendarCode uint8
	Bounds       func(now int64) [3]int64

	// Num/Den is the rate at which a bucket drains, in millitokens per
	// millisecond, in lowest terms. 0 < Num, 0 < Den, (MaxLevel + 1) × Den < Exact.
	Num, Den int64

	// Capacity is what a full bucket admits at once, in tokens.
	Capacity int64

	// OverdrawCap is how far below empty a bucket can be overdrawn, in tokens.
	OverdrawCap int64
}

// minLength is the shortest window, in milliseconds. Codes of calendar units are
// below it, so that the two never meet in a stored state.
const minLength = 1000

// Length is what a stored window says of its length: milliseconds, or the code
// of a calendar unit.
func (p *Params) Length() int64 {
	if p.CalendarCode != 0 {
		return int64(p.CalendarCode)
	}
	return p.Window
}

// MaxLevel is the highest level of the rule's bucket, in millitokens.
func (p *Params) MaxLevel() int64 { return (p.Capacity + p.OverdrawCap) * 1000 }

// Budget is the whole budget of the rule in hits: no single cost above it can
// ever be admitted (semantics S4).
func (p *Params) Budget() int64 {
	if p.Algorithm == TokenBucket {
		return p.Capacity
	}
	return p.Limit
}

// Rate sets Num and Den to limit hits per window of the given milliseconds, in
// lowest terms, and reports whether the rate is exact. It is not when
// (MaxLevel + 1) × Den would reach Exact; then Den is the largest that keeps the
// product below it, and Num is rounded down, but not to 0. Capacity and
// OverdrawCap, at most MaxCost each, must be set before.
//
// A token bucket with an inexact rate is a load error (semantics S13); for the
// other algorithms the rate serves only sidecars that run a stored bucket of a
// newer policy version. A limit of 0 never reaches a store; its rate is the
// slowest, so that nothing divides by zero.
func (p *Params) Rate(limit, window int64) (exact bool) {
	most := int64(Exact-1) / (p.MaxLevel() + 1)
	if limit <= 0 {
		p.Num, p.Den = 1, max(1, min(window, most))
		return true
	}
	num, den := limit*1000, window
	g := gcd(num, den)
	num, den = num/g, den/g
	if den <= most {
		p.Num, p.Den = num, den
		return true
	}
	// num × most may need 128 bits; the quotient fits, since most < den.
	hi, lo := bits.Mul64(uint64(num), uint64(most))
	q, _ := bits.Div64(hi, lo, uint64(den))
	num = max(1, int64(q))
	g = gcd(num, most)
	p.Num, p.Den = num/g, most/g
	return false
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Entry is one key and value of a descriptor. Both are bytes as the client
// sent them, valid UTF-8 or not.
type Entry struct{ Key, Value string }

// Kind is the class of a check in its request. A request's checks stand in the
// order of these values (semantics S2).
type Kind uint8

// The kinds of checks.
const (
	Refund   Kind = iota // gives back; never denies; cost 0 is a refund that is not trusted
	Enforced             // each one must allow
	Quota                // together they deny only when all of them deny
	Shadow               // evaluated only when the request is allowed, never denies
)

// String returns the name used in logs and metrics.
func (k Kind) String() string {
	switch k {
	case Refund:
		return "refund"
	case Enforced:
		return "enforced"
	case Quota:
		return "quota"
	case Shadow:
		return "shadow"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Check is one limit that a request meets, and, once decided, the verdict.
type Check struct {
	Key    Key
	Params *Params

	// Cost is what the check takes, in hits; 0 is a peek (semantics S6).
	Cost int64

	Kind Kind

	// Overdraw says that a denying check records its whole cost (semantics S5).
	Overdraw bool

	// Tag is the caller's: the pipeline keeps the descriptor and rule there.
	Tag int32

	Verdict Verdict
}

// Outcome is what was decided of one check.
type Outcome uint8

// The outcomes.
const (
	Undecided Outcome = iota
	Allow
	Deny
	NotEvaluated // the request was denied elsewhere; nothing is known of this check
)

var outcomeNames = [...]string{"undecided", "allow", "deny", "not_evaluated"}

// String returns the name used in logs.
func (o Outcome) String() string { return name("outcome", outcomeNames[:], uint8(o)) }

// Verdict is what is known of one check. Its zero value is undecided.
type Verdict struct {
	Outcome Outcome
	Source  Source
	Cause   Cause

	// Class says why an authority did not decide; ClassNone when it did.
	Class Class

	// Remaining is what is left of the budget, in hits, never negative.
	Remaining int64

	// Reset is the time until the state equals an unused one (bucket) or the
	// window ends, in milliseconds; for a denial it is Retry. Negative: none.
	Reset int64

	// Retry is, for a denial, the smallest wait after which the same check
	// would fit, in milliseconds. Negative: it never will (Cause TooLarge).
	Retry int64
}

// MaxChecks is the most checks that one request may have (semantics S2).
const MaxChecks = 64

// Ask is one request's checks for an authority.
//
// There are at most MaxChecks, in the order of their kinds. An authority decides them all or
// none: it fills every verdict, or it leaves those undecided and says why in
// their Class.
type Ask struct {
	Checks []Check

	// Deadline is the instant after which nobody waits for the answer. An
	// authority returns by then, and its store debits nothing later, by its
	// own clock. It carries a monotonic reading; zero means none.
	Deadline time.Time

	// Denied says that another check of the request was denied already:
	// refunds and what overdraws is recorded, nothing else is debited.
	Denied bool
}
