package authority

import (
	"github.com/weir-rl/weir/pkg/limit"
)

// record is one key of the model's store.
type record struct {
	value  string // "" for a type that is no string
	expire int64  // ms since the epoch, 0 for never
}

// model is a store of states in plain Go that decides with limit.Evaluate. The
// script is held equal to it.
type model struct{ records map[limit.Key]record }

func newModel() *model { return &model{records: map[limit.Key]record{}} }

// expireAt drops what Redis drops when it meets it at that time.
func (m *model) expireAt(now int64) {
	for k, r := range m.records {
		if r.expire != 0 && now > r.expire {
			delete(m.records, k)
		}
	}
}

// batch decides the requests of one script call at the time that it returned,
// and counts the foreign strings that they met.
func (m *model) batch(now int64, asks []timed) (foreign int64) {
	m.expireAt(now)
	slots := map[limit.Key]*limit.Slot{}
	load := func(c *limit.Check) *limit.Slot {
		if s := slots[c.Key]; s != nil {
			return s
		}
		s := new(limit.Slot)
		if r, ok := m.records[c.Key]; ok && r.value != "" && s.Load([]byte(r.value)) == limit.Foreign {
			foreign++
		}
		slots[c.Key] = s
		return s
	}
	for _, a := range asks {
		limit.Evaluate(a.Ask, now, a.notAfter, load)
	}
	for k, s := range slots {
		if s.Dirty == nil {
			continue
		}
		if s.State.Unused() {
			delete(m.records, k)
			continue
		}
		expire := now + s.State.TTL(s.Dirty, now)
		if s.OlderRule() {
			expire = max(expire, m.records[k].expire)
		}
		m.records[k] = record{string(limit.AppendState(nil, &s.State)), expire}
	}
	return foreign
}
