// Package fallback says what a rule does while its authority cannot answer.
//
// Decide is pure: a failure mode, the class of the failure and the check give
// a verdict. Nothing is counted here, so a mode that allows (open) admits
// without a bound for as long as the authority is away, and says so in its
// cause. The modes local and exempt need a share of the limit; until they have
// one they deny, as closed does.
package fallback

import (
	"time"

	"github.com/weir-rl/weir/pkg/limit"
)

// DefaultRetry is how long a caller who was denied as unavailable is asked to
// wait: about what a primary needs to restart or to be replaced, and short
// enough for nobody to stay away after a single lost answer.
const DefaultRetry = time.Second

// Decide returns the verdict of a check that its authority left undecided with
// that class. retry is the wait that a denial asks for, in milliseconds.
//
//	kind               mode                   verdict  cause
//	refund             any                    allow    refund (the refund is lost, which under-admits)
//	shadow             any                    allow    shadow (a shadow check never denies)
//	enforced, quota    open                   allow    allowed_by_mode
//	enforced, quota    closed, local, exempt  deny     unavailable; overload when our own queue was full
//
// The verdict has no numbers: nobody knows them.
func Decide(mode limit.Mode, class limit.Class, kind limit.Kind, retry int64) limit.Verdict {
	v := limit.Verdict{Outcome: limit.Allow, Source: limit.SourceFallback, Class: class, Reset: -1}
	switch {
	case kind == limit.Refund:
		v.Cause = limit.CauseRefund
	case kind == limit.Shadow:
		v.Cause = limit.CauseShadow
	case mode == limit.ModeOpen:
		v.Cause = limit.CauseAllowedByMode
	default:
		v.Outcome, v.Cause = limit.Deny, limit.CauseUnavailable
		if class == limit.ClassOverloaded {
			v.Cause = limit.CauseOverload
		}
		v.Retry, v.Reset = retry, retry
	}
	return v
}
