package policy

import (
	"strconv"
	"strings"

	"github.com/weir-rl/weir/pkg/limit"
)

// text returns a level as key or key_value.
func (l Level) text() string {
	if l.Value == "" {
		return l.Key
	}
	return l.Key + "_" + l.Value
}

// staticLabel joins the levels of a path.
func staticLabel(levels []Level) string {
	parts := make([]string, len(levels))
	for i, l := range levels {
		parts[i] = l.text()
	}
	return strings.Join(parts, ".")
}

// prepareLabel finds out whether the label depends on the request.
func (r *Rule) prepareLabel() {
	r.labelled = r.DetailedMetric
	for _, l := range r.Path {
		r.shared = r.shared || l.Shared
		r.labelled = r.labelled || l.ValueToMetric && l.open() && !l.Shared
	}
}

// open says that the level matches more than one value.
func (l Level) open() bool { return l.Pattern || l.Value == "" }

// Label returns the rule's metric label for these entries, which must have
// matched it: envoyproxy/ratelimit's stat key without the domain. A level is
// key_value, or key when it has no value; value_to_metric and detailed_metric
// put the request's own value there, but never on a level with
// share_threshold. One of several rules of a descriptor adds # and its name.
// Without entries it is the label with the file's own values.
// It allocates only for these two.
func (r *Rule) Label(entries []limit.Entry) string {
	if !r.labelled || len(entries) != len(r.Path) {
		return r.label
	}
	var b strings.Builder
	for i, l := range r.Path {
		if i > 0 {
			b.WriteByte('.')
		}
		e := entries[i]
		switch {
		case l.Shared:
			b.WriteString(l.text())
		case r.DetailedMetric:
			b.WriteString(e.Key)
			// The peer leaves the _ of an empty value, but not when a level is
			// shared. Dashboards hang on it.
			if e.Value != "" || !r.shared {
				b.WriteByte('_')
			}
			b.WriteString(e.Value)
		case l.ValueToMetric && l.open():
			b.WriteString(e.Key)
			if e.Value != "" {
				b.WriteByte('_')
				b.WriteString(e.Value)
			}
		default:
			b.WriteString(l.text())
		}
	}
	b.WriteString(r.suffix)
	return b.String()
}

// nameRules makes the labels of a domain's rules unique and gives them their
// IDs. Two paths can read the same (the key k_v, and the key k with the value
// v); the later ones get #2, #3 and so on. An ID is the rule's name where that
// names no other rule too, else the label.
func (d *Domain) nameRules() {
	labels, names := make(map[string]bool, len(d.rules)), map[string]int{}
	for _, r := range d.rules {
		for base, n := r.label, 2; labels[r.label]; n++ {
			r.label = base + "#" + strconv.Itoa(n)
		}
		labels[r.label] = true
		names[r.Name]++
	}
	for _, r := range d.rules {
		r.ID = r.label
		if r.Name != "" && names[r.Name] == 1 && !labels[r.Name] {
			r.ID = r.Name
		}
	}
}
