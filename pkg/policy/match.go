package policy

import (
	"strings"

	"github.com/weir-rl/weir/pkg/limit"
)

// Match returns the rules of a descriptor with these entries, in file order:
// several for a list of rate_limits, none when nothing limits it. The slice is
// the set's own. It allocates nothing.
//
// Entries are followed from the root, one level each. At a level the first of
// these wins, and what it has below is not tried again with another: the node
// with exactly this key and value; the first pattern in file order that
// matches; the node with this key and no value. A rule counts only at the last
// entry. Keys match keys and values match values, never a joined string
// (semantics S2).
func (d *Domain) Match(entries []limit.Entry) []*Rule {
	if len(entries) == 0 {
		return nil
	}
	n := &d.root
	for i := range entries {
		if n = n.find(&entries[i]); n == nil {
			return nil
		}
	}
	return n.rules
}

// node is one descriptor of a file with those below it.
type node struct {
	level Level
	rules []*Rule // none: no limit here

	// exact holds the nodes with a value, patterns too: a value that equals a
	// pattern's text goes to that pattern, whatever patterns come before it.
	exact    map[limit.Entry]*node
	patterns []pattern        // in file order
	bare     map[string]*node // the nodes without a value; one with a pattern is found as such before
	order    []*node          // all, in file order; for lint only

	// Where it is, for faults only.
	at     position
	path   *path
	report *report
}

// pattern is a node whose key or value has a *.
type pattern struct {
	key, value glob
	anyValue   bool
	node       *node
}

func (n *node) find(e *limit.Entry) *node {
	// No node has the value "", which in a file means any value.
	if e.Value != "" {
		if next := n.exact[*e]; next != nil {
			return next
		}
	}
	for i := range n.patterns {
		p := &n.patterns[i]
		if p.key.match(e.Key) && (p.anyValue || p.value.match(e.Value)) {
			return p.node
		}
	}
	return n.bare[e.Key]
}

// add puts a node below this one, unless there is one with the same key and
// value, which it returns.
func (n *node) add(below *node) *node {
	l := below.level
	switch {
	case l.Value != "":
		e := limit.Entry{Key: l.Key, Value: l.Value}
		if other := n.exact[e]; other != nil {
			return other
		}
		if n.exact == nil {
			n.exact = map[limit.Entry]*node{}
		}
		n.exact[e] = below
	default:
		if other := n.bare[l.Key]; other != nil {
			return other
		}
		if n.bare == nil {
			n.bare = map[string]*node{}
		}
		n.bare[l.Key] = below
	}
	if l.Pattern {
		n.patterns = append(n.patterns, pattern{newGlob(l.Key), newGlob(l.Value), l.Value == "", below})
	}
	n.order = append(n.order, below)
	return nil
}

// glob is a text in which each * stands for any bytes, also none.
type glob struct {
	text  string
	parts []string // between the stars; nil without a star
}

func newGlob(text string) glob {
	g := glob{text: text}
	if strings.Contains(text, "*") {
		g.parts = strings.Split(text, "*")
	}
	return g
}

func (g *glob) match(s string) bool {
	if g.parts == nil {
		return s == g.text
	}
	last := len(g.parts) - 1
	s, ok := strings.CutPrefix(s, g.parts[0])
	if !ok {
		return false
	}
	if s, ok = strings.CutSuffix(s, g.parts[last]); !ok {
		return false
	}
	// Taking the leftmost place of each part leaves most for those after it.
	for _, part := range g.parts[1:last] {
		if _, s, ok = strings.Cut(s, part); !ok {
			return false
		}
	}
	return true
}

func newLevel(d *descriptor) Level {
	return Level{
		Key: d.key.is, Value: d.value.is, Shared: d.share.is, ValueToMetric: d.valueToMetric.is,
		Pattern: strings.Contains(d.key.is, "*") || strings.Contains(d.value.is, "*"),
	}
}
