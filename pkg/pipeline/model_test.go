package pipeline_test

import (
	"fmt"
	"math"
	"strings"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
)

// model is the obvious implementation: one list of checks, one map of counts,
// and one pass over them for each sentence of the rules.
type model struct {
	world *world
	used  map[string]int64 // by rule, value and window
}

// modelLimit is one limit of a descriptor, or that it has none.
type modelLimit struct {
	desc     int
	rule     *policy.Rule // nil: none
	replaced bool
	check    *modelCheck // nil: it gives none
}

type modelCheck struct {
	index     int // of its limit
	rule      *policy.Rule
	kind      limit.Kind
	cost      int64
	overdraw  bool
	key       string
	end       int64
	decided   string // "", allow, deny, skip
	source    limit.Source
	cause     limit.Cause
	remaining int64
	wait      int64 // of a denial; never is MaxInt64
	numbers   bool  // remaining is known
	reset     int64 // milliseconds, -1 for none
}

const never = int64(math.MaxInt64)

func (c *modelCheck) set(outcome string, source limit.Source, cause limit.Cause) {
	c.decided, c.source, c.cause = outcome, source, cause
}

func (m *model) decide(req *pipeline.Request) string {
	if req.Malformed {
		return "OVER_LIMIT local/malformed no retry" + strings.Repeat(" | OVER_LIMIT", len(req.Descriptors))
	}
	var limits []*modelLimit
	replaced := map[string]bool{}
	for i := range req.Descriptors {
		rules := m.world.set.Domain("d").Match(req.Descriptors[i].Entries)
		if len(rules) == 0 {
			limits = append(limits, &modelLimit{desc: i})
		}
		for _, r := range rules {
			limits = append(limits, &modelLimit{desc: i, rule: r})
			for _, name := range r.Replaces {
				replaced[name] = true
			}
		}
	}
	var all []*modelCheck
	for kind := limit.Refund; kind <= limit.Shadow; kind++ {
		for i, l := range limits {
			if l.rule == nil || l.rule.Unlimited {
				continue
			}
			if l.replaced = replaced[l.rule.Name]; l.replaced {
				continue
			}
			if c := m.check(&req.Descriptors[l.desc], req.HitsAddend, l.rule); c.kind == kind {
				c.index, l.check = i, c
				all = append(all, c)
			}
		}
	}
	m.ask(all)
	return m.show(len(req.Descriptors), limits, all)
}

// whole says that the store answers nothing at all.
func (m *model) whole() bool {
	return m.world.class != limit.ClassNone && m.world.class != limit.ClassLayout
}

func (m *model) check(d *pipeline.Descriptor, hits uint32, r *policy.Rule) *modelCheck {
	length := r.Params.Window
	end := m.world.now - m.world.now%length + length
	c := &modelCheck{
		rule: r, end: end, reset: -1, wait: never,
		key: fmt.Sprint(r.ID, "=", d.Entries[0].Value, "@", end),
	}
	bad := d.HasHits && d.Hits > math.MaxUint32
	switch {
	case d.Negative && !bad:
		c.kind = limit.Refund
	case r.Shadow:
		c.kind = limit.Shadow
	case r.Quota:
		c.kind = limit.Quota
	default:
		c.kind = limit.Enforced
	}
	if c.kind != limit.Refund && !bad {
		c.cost = int64(hits)
		if c.cost == 0 {
			c.cost = 1
		}
		if d.HasHits {
			c.cost = int64(d.Hits)
		}
		c.overdraw = c.cost > 0 && (r.Overdraw == limit.OverdrawOn || r.Overdraw == limit.OverdrawAuto && d.HasHits)
	}
	switch {
	case bad:
		c.set("deny", limit.SourceLocal, limit.CauseMalformed)
	case r.RequestsPerUnit == 0 && c.kind == limit.Refund:
		c.set("allow", limit.SourceLocal, limit.CauseRefund)
		c.numbers = true
	case r.RequestsPerUnit == 0:
		c.set("deny", limit.SourceLocal, limit.CauseZeroLimit)
	case c.cost > int64(r.RequestsPerUnit) && !c.overdraw:
		c.set("deny", limit.SourceLocal, limit.CauseTooLarge)
	}
	return c
}

// deniedSoFar is S3 and S7 on what is decided.
func deniedSoFar(all []*modelCheck) bool {
	quotas, full := 0, 0
	for _, c := range all {
		if c.kind == limit.Enforced && c.decided == "deny" {
			return true
		}
		if c.kind == limit.Quota {
			quotas++
			if c.decided == "deny" {
				full++
			}
		}
	}
	return quotas > 0 && quotas == full
}

// ask is what the store does, and the failure modes.
func (m *model) ask(all []*modelCheck) {
	for again := 0; again < 2; again++ {
		denied := deniedSoFar(all)
		var ask []*modelCheck
		layout := false
		for _, c := range all {
			if c.decided == "" && (!denied || c.overdraw && c.kind != limit.Shadow) {
				ask = append(ask, c)
				for _, id := range m.world.layout {
					layout = layout || id == c.rule.ID
				}
			}
		}
		if len(ask) == 0 || m.whole() || layout {
			for _, c := range all {
				if c.decided != "" {
					continue
				}
				hit := m.whole()
				for _, id := range m.world.layout {
					hit = hit || id == c.rule.ID
				}
				if denied || len(ask) == 0 {
					if hit || again == 1 || len(ask) == 0 {
						c.decided = "skip"
					}
				} else if hit {
					m.mode(c)
				}
			}
			continue
		}
		m.evaluate(all, ask, denied)
		break
	}
	for _, c := range all {
		if c.decided == "" {
			c.decided = "skip"
		}
	}
}

func (m *model) mode(c *modelCheck) {
	switch {
	case c.kind == limit.Refund:
		c.set("allow", limit.SourceFallback, limit.CauseRefund)
	case c.kind == limit.Shadow:
		c.set("allow", limit.SourceFallback, limit.CauseShadow)
	case c.rule.OnStoreFailure == limit.ModeOpen:
		c.set("allow", limit.SourceFallback, limit.CauseAllowedByMode)
	default:
		c.set("deny", limit.SourceFallback, limit.CauseUnavailable)
		if m.world.class == limit.ClassOverloaded {
			c.cause = limit.CauseOverload
		}
		c.wait, c.reset = 1000, 1000
	}
}

func (m *model) evaluate(all, ask []*modelCheck, denied bool) {
	in := map[*modelCheck]bool{}
	for _, c := range ask {
		in[c] = true
	}
	// Once the failure mode of a quota check has allowed it, the others cannot
	// deny: they are counted like shadow checks.
	last := func(c *modelCheck) bool { return c.kind == limit.Shadow }
	for _, c := range all {
		if c.kind == limit.Quota && c.decided == "allow" && !denied {
			last = func(c *modelCheck) bool { return c.kind == limit.Shadow || c.kind == limit.Quota }
		}
	}
	trial, need, over := map[string]int64{}, map[*modelCheck]int64{}, map[*modelCheck]bool{}
	allowed, quotas, full := !denied, 0, 0
	for _, c := range all {
		switch {
		case c.kind == limit.Refund || last(c):
			continue
		case in[c]:
			need[c] = trial[c.key] + c.cost
			if over[c] = m.used[c.key]+need[c] > c.rule.Params.Limit; !over[c] {
				trial[c.key] += c.cost
			}
		}
		no := over[c] || c.decided == "deny"
		switch {
		case c.kind == limit.Enforced:
			allowed = allowed && !no
		case no:
			quotas++
			full++
		default:
			quotas++
		}
	}
	allowed = allowed && (quotas == 0 || full < quotas)
	if allowed {
		for k, n := range trial {
			m.used[k] += n
		}
	}
	for _, c := range ask {
		if over[c] && c.overdraw && m.used[c.key] <= c.rule.Params.Limit {
			m.used[c.key] += c.cost
		}
	}
	for _, c := range ask {
		if !last(c) {
			m.numbers(c, over[c], need[c])
		}
	}
	for _, c := range ask {
		if !last(c) {
			continue
		}
		if !allowed {
			c.decided = "skip"
			continue
		}
		full := m.used[c.key]+c.cost > c.rule.Params.Limit
		if !full || c.overdraw && m.used[c.key] <= c.rule.Params.Limit {
			m.used[c.key] += c.cost
		}
		m.numbers(c, full, c.cost)
	}
}

func (m *model) numbers(c *modelCheck, deny bool, need int64) {
	c.numbers, c.reset = true, c.end-m.world.now
	if !deny {
		c.set("allow", limit.SourceAuthority, limit.CauseAllowed)
		c.remaining = max(0, c.rule.Params.Limit-m.used[c.key])
		return
	}
	c.set("deny", limit.SourceAuthority, limit.CauseLimit)
	c.wait = c.reset
	if need > c.rule.Params.Limit {
		c.cause, c.wait = limit.CauseTooLarge, never
	}
}

// show is S3, S18 and S29, in the form of the scenarios.
func (m *model) show(descriptors int, limits []*modelLimit, all []*modelCheck) string {
	denied := deniedSoFar(all)
	for _, c := range all {
		switch {
		case c.kind == limit.Shadow && denied:
			c.decided = "skip"
		case c.decided == "skip":
		case c.kind == limit.Shadow:
			c.cause = limit.CauseShadow
		case c.kind == limit.Refund:
			c.cause = limit.CauseRefund
		case c.cost == 0 && c.cause == limit.CauseAllowed:
			c.cause = limit.CausePeek
		}
	}
	var b strings.Builder
	if denied {
		b.WriteString(m.showDenied(all))
	} else {
		b.WriteString(showAllowed(limits))
	}
	shadow := ""
	for _, c := range all {
		if c.kind == limit.Shadow && c.decided == "deny" && shadow == "" {
			shadow = " shadow " + c.rule.ID
		}
	}
	b.WriteString(shadow)
	for i := range descriptors {
		b.WriteString(" | " + showStatus(limits, i))
	}
	return b.String()
}

// showStatus goes through the limits of a descriptor once for each sentence of
// what its status shows.
func showStatus(limits []*modelLimit, desc int) string {
	var mine []*modelCheck
	unlimited := false
	for _, l := range limits {
		if l.desc == desc && l.check != nil {
			mine = append(mine, l.check)
		}
		unlimited = unlimited || l.desc == desc && l.rule != nil && l.rule.Unlimited
	}
	var c *modelCheck
	for _, x := range mine {
		if x.decided == "deny" && x.kind != limit.Shadow && (c == nil || x.wait > c.wait) {
			c = x
		}
	}
	for _, fits := range allowedGroups {
		if c != nil {
			break
		}
		for _, x := range mine {
			if x.decided != "skip" && fits(x) && (c == nil || x.remaining < c.remaining || x.remaining == c.remaining && x.reset > c.reset) {
				c = x
			}
		}
	}
	switch {
	case len(mine) == 0 && unlimited:
		return "OK 4294967295 left"
	case c == nil || c.decided == "allow" && !c.numbers:
		return "OK"
	}
	code := "OK"
	if c.decided == "deny" && c.kind != limit.Shadow {
		code = "OVER_LIMIT"
	}
	s := fmt.Sprintf("%s %d/%s %q %d left", code, c.rule.RequestsPerUnit, c.rule.Unit, c.rule.Name, c.remaining)
	if c.reset >= 0 {
		s += fmt.Sprintf(" %ds", int64(math.Ceil(math.Max(1, float64(c.reset)/1000))))
	}
	return s
}

func (m *model) showDenied(all []*modelCheck) string {
	quotas, group := 0, []*modelCheck(nil)
	var deniers []*modelCheck
	unavailable := false
	for _, c := range all {
		if c.kind == limit.Quota {
			quotas++
			if c.decided == "deny" {
				group = append(group, c)
			}
		}
		if c.kind == limit.Enforced && c.decided == "deny" {
			deniers = append(deniers, c)
		}
	}
	fault := func(c *modelCheck) bool {
		return c.cause == limit.CauseUnavailable || c.cause == limit.CauseOverload
	}
	if quotas > 0 && len(group) == quotas {
		best := group[0]
		for _, c := range group {
			unavailable = unavailable || fault(c)
			if c.wait < best.wait {
				best = c
			}
		}
		deniers = append(deniers, best)
	}
	named := deniers[0]
	for _, c := range deniers {
		unavailable = unavailable || fault(c)
		if c.wait > named.wait || c.wait == named.wait && c.index < named.index {
			named = c
		}
	}
	s := fmt.Sprintf("OVER_LIMIT %v/%v by %s", named.source, named.cause, named.rule.ID)
	if named.wait == never {
		s += " no retry"
	} else {
		s += fmt.Sprintf(" retry %d ms", named.wait)
	}
	if unavailable {
		s += " as unavailable"
	}
	return s
}

// allowedGroups are the checks that allow, or cannot deny, in the order in which
// one is named.
var allowedGroups = []func(*modelCheck) bool{
	func(c *modelCheck) bool {
		return c.kind != limit.Refund && c.kind != limit.Shadow && c.source != limit.SourceFallback
	},
	func(c *modelCheck) bool { return c.kind != limit.Refund && c.kind != limit.Shadow },
	func(c *modelCheck) bool { return c.kind == limit.Refund },
	func(c *modelCheck) bool { return c.kind == limit.Shadow },
}

func showAllowed(limits []*modelLimit) string {
	// One group after the other, each in the order of the limits.
	for _, group := range allowedGroups {
		var named *modelCheck
		for _, l := range limits {
			c := l.check
			if c == nil || c.kind != limit.Shadow && c.decided != "allow" || !group(c) {
				continue
			}
			if named == nil || c.remaining < named.remaining || c.remaining == named.remaining && c.reset > named.reset {
				named = c
			}
		}
		if named != nil {
			return fmt.Sprintf("OK %v/%v by %s", named.source, named.cause, named.rule.ID)
		}
	}
	for _, l := range limits {
		if l.rule != nil && l.rule.Unlimited {
			return "OK none/unlimited by " + l.rule.ID
		}
	}
	for _, l := range limits {
		if l.replaced {
			return "OK none/replaced"
		}
	}
	return "OK none/no_rule"
}
