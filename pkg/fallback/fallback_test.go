package fallback_test

import (
	"fmt"
	"testing"

	"github.com/weir-rl/weir/pkg/fallback"
	"github.com/weir-rl/weir/pkg/limit"
)

// declared is what every mode answers for every class, written out: a new mode
// or class has no row and fails the test.
var declared = map[limit.Mode]map[bool]limit.Cause{ // by whether the class is overloaded
	limit.ModeLocal:  {false: limit.CauseUnavailable, true: limit.CauseOverload},
	limit.ModeClosed: {false: limit.CauseUnavailable, true: limit.CauseOverload},
	limit.ModeOpen:   {false: limit.CauseAllowedByMode, true: limit.CauseAllowedByMode},
	limit.ModeExempt: {false: limit.CauseUnavailable, true: limit.CauseOverload},
}

func TestDecideEveryModeAndClass(t *testing.T) {
	classes := append(limit.Classes(), limit.ClassNone)
	for mode := limit.ModeLocal; mode <= limit.ModeExempt; mode++ {
		for _, class := range classes {
			for kind := limit.Refund; kind <= limit.Shadow; kind++ {
				t.Run(fmt.Sprintf("%v,%v,%v", mode, class, kind), func(t *testing.T) {
					want := limit.Verdict{Outcome: limit.Allow, Source: limit.SourceFallback, Class: class, Reset: -1}
					switch kind {
					case limit.Refund:
						want.Cause = limit.CauseRefund
					case limit.Shadow:
						want.Cause = limit.CauseShadow
					default:
						want.Cause = declared[mode][class == limit.ClassOverloaded]
						if want.Cause != limit.CauseAllowedByMode {
							want.Outcome, want.Retry, want.Reset = limit.Deny, 1000, 1000
						}
					}
					if got := fallback.Decide(mode, class, kind, 1000); got != want {
						t.Errorf("got %+v, want %+v", got, want)
					}
				})
			}
		}
	}
	if _, named := limit.ParseMode((limit.ModeExempt + 1).String()); named || len(declared) != int(limit.ModeExempt)+1 {
		t.Error("a mode has no declared answer")
	}
}
