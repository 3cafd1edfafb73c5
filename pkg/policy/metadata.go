package policy

import (
	"fmt"
	"strconv"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// metadata adds a map to a descriptor's metadata. Its values are those of a
// protobuf Struct: nil, bool, float64, string, []any, map[string]any.
func (r *reader) metadata(m *value[map[string]any], x field, p *path) {
	m.at, m.set = at(x.node), true
	if x.value.Kind != yaml.MappingNode {
		if !isNull(x.value) {
			r.wrongType(x.value, p, "a map of metadata")
		}
		m.is = nil
		return
	}
	if m.is == nil {
		m.is = map[string]any{}
	}
	r.metaMap(m.is, x.value, p, true)
	if len(m.is) == 0 {
		m.is = nil
	}
}

// metaMap adds the keys of a mapping. Those of the outermost one are the
// file's text; below it the peer prints what they resolve to.
func (r *reader) metaMap(into map[string]any, n *yaml.Node, p *path, outermost bool) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], resolve(n.Content[i+1])
		if isMerge(k) {
			sources, _ := mergeSources(n.Content[i+1])
			for _, m := range sources {
				r.metaMap(into, m, p, outermost)
			}
			continue
		}
		k = resolve(k)
		if k.Kind != yaml.ScalarNode {
			continue
		}
		s, ok := r.metaScalar(k, p)
		if !ok {
			continue
		}
		name := metaKey(s, outermost)
		into[name] = r.metaValue(v, p.field(name))
	}
}

// metaScalar resolves a scalar and holds it to UTF-8, which !!binary need not be.
func (r *reader) metaScalar(n *yaml.Node, p *path) (scalar, bool) {
	s, err := readScalar(n)
	if err != nil {
		return s, false
	}
	if !utf8.ValidString(s.text) {
		r.fault(CodeBadMetadata, at(n), p, n.Value, "use text, numbers, booleans, lists and maps only",
			"error parsing metadata: invalid UTF-8 in string")
		return s, false
	}
	return s, true
}

func metaKey(s scalar, outermost bool) string {
	switch {
	case s.kind == scalarNull && outermost:
		return ""
	case outermost, s.kind == scalarText, s.kind == scalarTime:
		return s.text
	case s.kind == scalarNull:
		return "<nil>"
	case s.kind == scalarBool:
		return strconv.FormatBool(s.yes)
	case s.kind == scalarInt:
		return strconv.FormatInt(s.num, 10)
	case s.kind == scalarHuge:
		return strconv.FormatUint(s.huge, 10)
	}
	return fmt.Sprint(s.frac)
}

func (r *reader) metaValue(n *yaml.Node, p *path) any {
	switch n.Kind {
	case yaml.MappingNode:
		m := map[string]any{}
		r.metaMap(m, n, p, false)
		return m
	case yaml.SequenceNode:
		l := make([]any, len(n.Content))
		for i, c := range n.Content {
			l[i] = r.metaValue(resolve(c), p.element(i))
		}
		return l
	}
	s, ok := r.metaScalar(n, p)
	if !ok {
		return nil
	}
	switch s.kind {
	case scalarNull:
		return nil
	case scalarBool:
		return s.yes
	case scalarInt:
		return float64(s.num)
	case scalarHuge:
		return float64(s.huge)
	case scalarFloat:
		return s.frac
	}
	return s.text
}
