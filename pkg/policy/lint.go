package policy

import (
	"strings"

	"github.com/weir-rl/weir/pkg/limit"
)

// actsAsClosed warns of failure modes that load but are not built yet.
func (c *compiler) actsAsClosed(m value[limit.Mode], p *path) {
	if m.is == limit.ModeLocal || m.is == limit.ModeExempt {
		c.warn(CodeActsAsClosed, m.at, p, m.is.String(), "use closed or open until then",
			"on_store_failure %s acts as closed until local shares are supported", inQuotes(m.is.String()))
	}
}

// notes says once for each file what is true of many of its rules.
func (c *compiler) notes() {
	if c.tail.n > 0 {
		c.note(CodeWindowTail, c.tail.at, c.tail.path, "", "use algorithm: token_bucket where that is too much",
			"a fixed window admits up to 2 × its limit around its boundary (%d in this file)", c.tail.n)
	}
	if c.debt.n > 0 {
		c.note(CodeBucketOverdraw, c.debt.at, c.debt.path, "", "set overdraw: on where costs are charged after the fact, off where they are not",
			"with overdraw 'auto' a token bucket records no cost that it refuses: peeked first and charged later, it never denies (%d in this file)", c.debt.n)
	}
	if c.mode.n > 0 {
		c.note(CodeActsAsClosed, c.mode.at, c.mode.path, "", "set on_store_failure: closed or open",
			"on_store_failure is 'local' by default, which acts as closed until local shares are supported (%d in this file)", c.mode.n)
	}
}

// replaceNothing warns of replaces that name no rule: names are those that
// rules are given by rate_limit.name, and a request has one domain. A set with
// errors may lack rules that its files mean to have.
func (c *compiler) replaceNothing() {
	for _, r := range c.reports {
		if r.faults.Err() != nil {
			return
		}
	}
	type named struct {
		domain *Domain
		name   string
	}
	known := map[named]bool{}
	for _, d := range c.set.order {
		for _, r := range d.rules {
			known[named{d, r.Name}] = true
		}
	}
	for _, r := range c.replaces {
		if !known[named{r.domain, r.name}] {
			r.report.warn(CodeNoEffect, r.at, r.path, r.name, "correct it, or give the rule to replace that rate_limit.name",
				"no rule of domain %s has the name %s, so nothing is replaced", inQuotes(r.domain.name), inQuotes(r.name))
		}
	}
}

// maxLintPatterns bounds the comparison of each pattern of a level with those
// before it; on a level with more only the first ones are compared.
const maxLintPatterns = 1000

// unreachable warns of descriptors that an earlier pattern hides: there is no
// backtracking, so they never match. A pattern covers another when it matches
// the other's text, in which a * can be taken up only by a * of its own.
func (c *compiler) unreachable(n *node) {
	for i, p := range n.patterns {
		if i < maxLintPatterns {
			c.hidden(n.patterns[:i], p.node)
		}
		c.unreachable(p.node)
	}
	for _, b := range n.order {
		if b.level.Pattern {
			continue
		}
		if b.level.Value == "" {
			c.hidden(n.patterns[:min(len(n.patterns), maxLintPatterns)], b)
		}
		c.unreachable(b)
	}
}

// hidden warns when one of the patterns covers the node. Exact values are
// never hidden, since they are looked up first; nor is a node with a * in its
// key and a value, which is the name of an Envoy Gateway route rather than a
// pattern, and is found by its own text.
func (c *compiler) hidden(by []pattern, n *node) {
	if n.level.Value != "" && strings.Contains(n.level.Key, "*") {
		return
	}
	for _, p := range by {
		if !p.key.match(n.level.Key) {
			continue
		}
		// A node without a value matches any, so only a pattern that matches
		// any value covers it; "*" does, also the empty one.
		covers := p.anyValue || strings.Trim(p.value.text, "*") == ""
		if !covers && n.level.Value != "" {
			covers = p.value.match(n.level.Value)
		}
		if covers {
			n.report.warn(CodeUnreachable, n.at, n.path, n.level.text(), "move it before the pattern, or remove it",
				"%s is hidden: the pattern %s at %s:%d comes first and takes all that would match it", inQuotes(n.level.text()),
				inQuotes(p.node.level.text()), p.node.report.file, p.node.at.line)
			return
		}
	}
}
