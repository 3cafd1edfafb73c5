package policy

import (
	"cmp"
	"maps"
	"slices"
)

// Field is a field of a policy file that loads, where it has a meaning. A field
// that has one in two places is there twice.
type Field struct {
	In   string // "a file", "a descriptor", or the field whose map it stands in
	Name string
	Weir bool // Weir's own, or in a place of Weir's; the others are envoyproxy/ratelimit's
}

// Fields lists all of them, from the outermost place inwards and by name. An
// element of rate_limits has the fields of rate_limit beside its own.
func Fields() []Field {
	type placed struct {
		Field
		in place
	}
	var all []placed
	for weir, keys := range map[bool]map[string]map[place]place{false: peerKeys, true: weirKeys} {
		for name, where := range keys {
			for in := range where {
				all = append(all, placed{Field{In: placeNames[in], Name: name, Weir: weir || in.ours()}, in})
			}
		}
	}
	slices.SortFunc(all, func(a, b placed) int { return cmp.Or(cmp.Compare(a.in, b.in), cmp.Compare(a.Name, b.Name)) })
	fields := make([]Field, len(all))
	for i := range all {
		fields[i] = all[i].Field
	}
	return fields
}

// LaterFields lists the fields that are designed but not built, which a file
// cannot have yet.
func LaterFields() []string { return slices.Sorted(maps.Keys(laterKeys)) }
