package limit

import "slices"

// MaxLog is the largest limit of a sliding log, and the most hits and entries
// that one holds: 8 KB.
const MaxLog = 1000

// logLimit is the rule's limit of a log. A rule whose algorithm is another one
// meets a log that a newer policy version made.
func (p *Params) logLimit() int64 { return min(p.Limit, MaxLog) }

// expire drops the entries that no window ending now covers.
func (s *State) expire(p *Params, now int64) {
	i := 0
	for i < len(s.Entries) && s.Entries[i].Time <= now-p.Window {
		s.Used -= s.Entries[i].N
		i++
	}
	s.Entries = s.Entries[i:]
}

// add enters hits at now, or at the time of the newest entry when the clock
// went back: no entry may expire before older ones.
func (s *State) add(now, n int64) {
	if last := len(s.Entries) - 1; last >= 0 && s.Entries[last].Time >= now {
		s.Entries[last].N += n
		return
	}
	s.Entries = append(s.Entries, LogEntry{now, n})
}

// remove takes hits from the newest entries; there are that many.
func (s *State) remove(n int64) {
	last := len(s.Entries) - 1
	for n > 0 && s.Entries[last].N <= n {
		n -= s.Entries[last].N
		last--
	}
	s.Entries = s.Entries[:last+1]
	if n > 0 {
		s.Entries[last].N -= n
	}
}

// logTime is the time until that many of the oldest hits have expired.
func (s *State) logTime(p *Params, now, by int64) int64 {
	for _, e := range s.Entries {
		if by -= e.N; by <= 0 {
			return e.Time + p.Window - now
		}
	}
	return 0
}

// Clone returns a copy that shares nothing with s.
func (s *State) Clone() State {
	c := *s
	c.Entries, c.Permits = slices.Clone(s.Entries), slices.Clone(s.Permits)
	return c
}
