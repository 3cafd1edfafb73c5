package memory

import "github.com/weir-rl/weir/pkg/limit"

// entry is one stored state.
type entry struct {
	key    limit.Key
	params *limit.Params // set for a rule's overflow bucket, which has no key
	state  limit.State

	// expiry is when the state equals an absent one, as the rule that last
	// changed it sees it. The entry is in the heap at index.
	expiry int64
	index  int
}

// at is the state as it counts at now: absent once its time is over, whether it
// was dropped already or not.
func (e *entry) at(now int64) limit.State {
	if e.expiry <= now {
		return limit.State{}
	}
	return e.state
}

// slack is what State.TTL adds to the time until a state equals an absent one,
// so that a store's key outlives its meaning. The table has to know the instant
// itself: a state that has become meaningless makes room at once.
var slack = (&limit.State{Algorithm: limit.TokenBucket}).TTL(&limit.Params{}, 0)

// dropLocked drops at most n states that equal an absent one by now. Whatever
// else is in the table means something and stays.
func (s *Store) dropLocked(now int64, n int) {
	for ; n > 0 && len(s.expiries) > 0 && s.expiries[0].expiry <= now; n-- {
		s.removeLocked(s.expiries[0])
	}
}

func (s *Store) removeLocked(e *entry) {
	s.expiries.remove(e)
	if e.params != nil {
		delete(s.overflow, e.params)
		return
	}
	delete(s.entries, e.key)
}

// expiries is a binary min-heap by expiry. Most debits of a window leave its
// end where it is and do not touch the heap; container/heap would do as well,
// at an interface call for each step.
type expiries []*entry

func (h *expiries) push(e *entry) {
	e.index = len(*h)
	*h = append(*h, e)
	h.up(e.index)
}

// move gives e another expiry.
func (h expiries) move(e *entry, expiry int64) {
	before := e.expiry
	e.expiry = expiry
	switch {
	case expiry < before:
		h.up(e.index)
	case expiry > before:
		h.down(e.index)
	}
}

func (h *expiries) remove(e *entry) {
	old, i := *h, e.index
	last := len(old) - 1
	old.swap(i, last)
	old[last] = nil
	*h = old[:last]
	if i < last {
		h.up(i)
		h.down(i)
	}
}

func (h expiries) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h expiries) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].expiry <= h[i].expiry {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h expiries) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if right := child + 1; right < len(h) && h[right].expiry < h[child].expiry {
			child = right
		}
		if h[i].expiry <= h[child].expiry {
			return
		}
		h.swap(i, child)
		i = child
	}
}
