package history_test

import (
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/history"
)

var (
	window = history.Rule{Limit: 20, Window: 10_000}
	bucket = history.Rule{Bucket: true, Capacity: 20, Limit: 2, Window: 1_000}
)

func yes(time, cost int64) history.Event {
	return history.Event{Time: time, Key: "k", Cost: cost, Admitted: true}
}

func no(time, cost int64) history.Event { return history.Event{Time: time, Key: "k", Cost: cost} }

func charged(time, cost int64) history.Event {
	return history.Event{Time: time, Key: "k", Cost: cost, Charged: cost}
}

func clock(time int64) history.Event { return history.Event{Time: time} }

// TestCheckFailsOnBadHistories has one bad history for each bound, and beside it the nearest good one.
func TestCheckFailsOnBadHistories(t *testing.T) {
	for _, c := range []struct {
		name      string
		rule      history.Rule
		bad, good []history.Event
		fault     string
	}{
		{
			"more than a window's limit", window,
			[]history.Event{yes(5, 12), yes(9_999, 9)},
			[]history.Event{yes(5, 12), yes(9_999, 8)},
			"over: events 0 to 1 admitted 21 in 1 windows",
		},
		{
			"more than twice the limit around a boundary", window,
			[]history.Event{yes(9_900, 20), yes(10_100, 20), yes(10_200, 1)},
			[]history.Event{yes(9_900, 20), yes(10_100, 20), yes(20_000, 1)},
			"over: events 0 to 2 admitted 41 in 2 windows",
		},
		{
			"a window's limit again after a step back that left it for no other", window,
			[]history.Event{yes(9_900, 20), clock(3_000), yes(3_000, 1)},
			[]history.Event{yes(9_900, 20), clock(10_000), yes(3_000, 1)},
			"admitted 21 in 1 windows",
		},
		{
			"more than was given back", window,
			[]history.Event{yes(5, 20), yes(6, -3), yes(7, 4)},
			[]history.Event{yes(5, 20), yes(6, -3), yes(7, 3)},
			"over: events 0 to 2 admitted 21 in 1 windows",
		},
		{
			"more than a bucket's capacity at once", bucket,
			[]history.Event{yes(5, 20), yes(5, 1)},
			[]history.Event{yes(5, 20), no(5, 1)},
			"over: events 0 to 1 admitted 21 while the clock went 0 ms",
		},
		{
			"more than a bucket's capacity and rate", bucket,
			[]history.Event{yes(0, 10), yes(1_000, 10), yes(2_000, 4), yes(2_499, 1)},
			[]history.Event{yes(0, 10), yes(1_000, 10), yes(2_000, 4), yes(2_500, 1)},
			"over: events 0 to 3 admitted 25 while the clock went 2499 ms",
		},
		{
			"a step back that fills a bucket", bucket,
			[]history.Event{yes(9_000, 20), yes(4_000, 1)},
			[]history.Event{yes(9_000, 20), yes(4_000, 0), yes(4_500, 1)},
			"over: events 0 to 1 admitted 21 while the clock went 0 ms",
		},
		{
			"a window that denies what it has", window,
			[]history.Event{yes(5, 12), no(6, 8)},
			[]history.Event{yes(5, 12), no(6, 9)},
			"refused: event 1 was denied 8 hits with 12 of 20 used",
		},
		{
			"a window that does not end", window,
			[]history.Event{yes(5, 20), no(10_000, 1)},
			[]history.Event{yes(5, 20), no(9_999, 1)},
			"refused: event 1 was denied 1 hits with 0 of 20 used",
		},
		{
			"a bucket that denies what it has", bucket,
			[]history.Event{yes(0, 20), no(500, 1)},
			[]history.Event{yes(0, 20), no(499, 1)},
			"refused: event 1",
		},
		{
			"a bucket that loses what drains in small steps", bucket,
			[]history.Event{yes(0, 20), no(1, 1), no(250, 1), no(501, 1)},
			[]history.Event{yes(0, 20), no(1, 1), no(250, 1), yes(501, 1)},
			"refused: event 3",
		},
		{
			"an exhausted window that admits", window,
			[]history.Event{yes(0, 10), charged(1, 11), yes(2, 1)},
			[]history.Event{yes(0, 10), charged(1, 11), no(2, 1), yes(10_000, 1)},
			"after: event 2 was admitted in the window that event 1 had exhausted",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules := map[string]history.Rule{"k": c.rule}
			faults := history.Check(c.bad, rules)
			if len(faults) == 0 || !strings.Contains(faults[0].Error(), c.fault) {
				t.Errorf("Check of the bad history = %v, want %q", faults, c.fault)
			}
			if faults := history.Check(c.good, rules); len(faults) > 0 {
				t.Errorf("Check of the good history = %v, want none", faults)
			}
		})
	}
}

// TestCheckKeepsKeysApart: each key has a budget of its own, and one without a rule is a fault of the record.
func TestCheckKeepsKeysApart(t *testing.T) {
	events := []history.Event{yes(0, 20), {Time: 0, Key: "other", Cost: 20, Admitted: true}}
	rules := map[string]history.Rule{"k": window, "other": bucket}
	if faults := history.Check(events, rules); len(faults) > 0 {
		t.Errorf("Check = %v, want none", faults)
	}
	delete(rules, "other")
	if faults := history.Check(events, rules); len(faults) != 1 || !strings.Contains(faults[0].Error(), `"other"`) {
		t.Errorf("Check = %v, want one fault, of the key without a rule", faults)
	}
}
