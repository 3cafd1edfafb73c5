// Package history judges recorded runs of a rate limiter: were more hits admitted than the rules promise, over any
// span, or was one refused that should not have been?
//
// It sees only when something was asked of which key, at what cost and whether it was admitted. It shares no code with
// the limiter, knows nothing of how it counts and looks at every span there is, so its errors are not the limiter's.
// Everything here is pure and safe for concurrent use.
package history

import (
	"fmt"
	"math/bits"
)

// Event is one line of a record, in the order in which the limiter decided.
type Event struct {
	Time int64 // By the limiter's clock, in milliseconds. It may go back.

	// Key says whose budget it is; "" is a mere reading of the clock.
	Key string

	// Cost is how many hits were asked for: together with what earlier checks of the same request had taken from the
	// key, when the request was denied. A negative one was given back.
	Cost int64

	Admitted bool

	// Charged is what a refused cost was to be charged, since its rule overdraws.
	Charged int64
}

// Rule is what was promised for one key.
type Rule struct {
	// Bucket tells a token bucket from a fixed window. A window admits Limit in every window of Window milliseconds
	// since the epoch; a bucket admits Capacity at once and Limit in Window milliseconds.
	Bucket                  bool
	Limit, Window, Capacity int64
}

// Check returns what is wrong with a record, at most one fault of each kind for each key:
//
//   - over: the events of some span admitted, less what they gave back, more than the rule allows: a window Limit
//     times the windows that the clock touched, a bucket Capacity and what drains while the clock goes forward
//   - refused: a cost was denied although it fitted
//   - after: a cost was admitted in a window that a charged refusal had exhausted
//
// A clock that goes back makes Check more lenient, never wrong: each of its moves forward counts, and no refusal is
// judged while it is behind where it was.
func Check(events []Event, rules map[string]Rule) []error {
	byKey := map[string][]moment{}
	var keys []string
	var m moment
	for i, e := range events {
		if i == 0 {
			m.latest = e.Time
		} else if d := e.Time - events[i-1].Time; d > 0 {
			m.forward += d
		}
		m.latest = max(m.latest, e.Time)
		m.Event, m.at = e, i
		if e.Key == "" {
			for k := range byKey {
				byKey[k] = append(byKey[k], m)
			}
			continue
		}
		if _, ok := byKey[e.Key]; !ok {
			keys = append(keys, e.Key)
		}
		byKey[e.Key] = append(byKey[e.Key], m)
	}
	var faults []error
	for _, k := range keys {
		r, ok := rules[k]
		if !ok {
			faults = append(faults, fmt.Errorf("key %q: no rule was given", k))
			continue
		}
		for _, find := range []func([]moment) error{r.over, r.refused, r.after} {
			if err := find(byKey[k]); err != nil {
				faults = append(faults, fmt.Errorf("key %q: %w", k, err))
			}
		}
	}
	return faults
}

// moment is an event and what the clock had done by then.
type moment struct {
	Event
	at      int   // Its place in the record.
	forward int64 // How far the clock has gone forward in all, whatever it went back.
	latest  int64 // The latest time seen so far.
}

func (m moment) behind() bool { return m.Time < m.latest }

// asked says that the event is about the budget: not a mere reading of the clock.
func (m moment) asked() bool { return m.Key != "" }

// over finds a span over which too much was admitted.
func (r Rule) over(events []moment) error {
	for i, from := range events {
		if !from.asked() || !from.Admitted {
			continue
		}
		sum, windows := int64(0), int64(1)
		for j := i; j < len(events); j++ {
			to := events[j]
			if j > i && to.Time/r.Window != events[j-1].Time/r.Window {
				windows++
			}
			if !to.asked() || !to.Admitted {
				continue
			}
			sum += to.Cost
			if r.Bucket {
				if r.above(sum, to.forward-from.forward) {
					return fmt.Errorf("over: events %d to %d admitted %d while the clock went %d ms, of a bucket of %d and %d per %d ms",
						from.at, to.at, sum, to.forward-from.forward, r.Capacity, r.Limit, r.Window)
				}
			} else if sum > r.Limit*windows {
				return fmt.Errorf("over: events %d to %d admitted %d in %d windows of %d", from.at, to.at, sum, windows, r.Limit)
			}
		}
	}
	return nil
}

// above says that sum > Capacity + Limit/Window × ms, without rounding.
func (r Rule) above(sum, ms int64) bool {
	if sum <= r.Capacity {
		return false
	}
	tooMuch, low := bits.Mul64(uint64(sum-r.Capacity), uint64(r.Window))
	drained, lowest := bits.Mul64(uint64(r.Limit), uint64(ms))
	return tooMuch > drained || tooMuch == drained && low > lowest
}

// refused finds a denial for which there was room. What was given back is not taken off, so that a record with refunds
// is judged leniently.
func (r Rule) refused(events []moment) error {
	for j, e := range events {
		if !e.asked() || e.Admitted || e.behind() {
			continue
		}
		if r.Bucket {
			if !r.deficit(events[:j], e) {
				return fmt.Errorf("refused: event %d was denied %d hits that the bucket had", e.at, e.Cost)
			}
			continue
		}
		used := int64(0)
		for _, earlier := range events[:j] {
			if earlier.latest/r.Window == e.Time/r.Window {
				used += charged(earlier)
			}
		}
		if used+e.Cost <= r.Limit {
			return fmt.Errorf("refused: event %d was denied %d hits with %d of %d used", e.at, e.Cost, used, r.Limit)
		}
	}
	return nil
}

// charged is what an event may have taken from the budget.
func charged(m moment) int64 {
	if m.asked() && m.Admitted {
		return max(0, m.Cost)
	}
	return m.Charged
}

// deficit says that a bucket lacked something of what e asked for: that over some span up to e, what was charged and
// asked exceeds the capacity and what drained.
func (r Rule) deficit(earlier []moment, e moment) bool {
	sum := e.Cost
	if sum > r.Capacity {
		return true
	}
	for i := len(earlier) - 1; i >= 0; i-- {
		if c := charged(earlier[i]); c > 0 {
			sum += c
			if r.above(sum, e.latest-earlier[i].latest) {
				return true
			}
		}
	}
	return false
}

// after finds a cost that was admitted although refused ones had exhausted the window, and nothing was given back.
func (r Rule) after(events []moment) error {
	if r.Bucket {
		return nil
	}
	used, exhausted := int64(0), -1 // In the window of the event before; exhausted is the refusal that did it.
	for j, e := range events {
		if j > 0 && e.Time/r.Window != events[j-1].Time/r.Window || e.Cost < 0 {
			used, exhausted = 0, -1
		}
		if exhausted >= 0 && e.Admitted && e.Cost > 0 {
			return fmt.Errorf("after: event %d was admitted in the window that event %d had exhausted", e.at, exhausted)
		}
		used += charged(e)
		if exhausted < 0 && e.Charged > 0 && used > r.Limit {
			exhausted = e.at
		}
	}
	return nil
}
