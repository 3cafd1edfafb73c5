package policy

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// The peer reads a file twice: once as plain maps, to refuse keys that it does
// not know and scalars that it cannot use, and once into its own types. Both
// passes are kept apart here too, since they see repeated keys differently:
// the first looks at the last of them only, the second applies each in turn.
// This file is the first pass.

// place is where in the tree a mapping stands.
type place uint8

const (
	nowhere place = iota // below a key that nobody reads
	inRoot
	inDescriptor
	inRateLimit
	inRateLimits // an element of the list, which has all that a rate_limit has
	inReplaces
	inDefaults
	inStoreFailure
	leaf // the value is a scalar
	free // the value is not looked at
)

var placeNames = [...]string{
	"", "a file", "a descriptor", "rate_limit", "rate_limits", "replaces", "defaults", "on_store_failure", "", "",
}

// peerKeys are the keys of envoyproxy/ratelimit's format. It accepts them
// anywhere, and ignores them anywhere but here.
var peerKeys = map[string]map[place]place{
	"domain":            {inRoot: leaf},
	"descriptors":       {inRoot: inDescriptor, inDescriptor: inDescriptor},
	"key":               {inDescriptor: leaf},
	"value":             {inDescriptor: leaf},
	"rate_limit":        {inDescriptor: inRateLimit},
	"shadow_mode":       {inDescriptor: leaf, inRateLimits: leaf},
	"quota_mode":        {inDescriptor: leaf},
	"detailed_metric":   {inDescriptor: leaf},
	"value_to_metric":   {inDescriptor: leaf},
	"share_threshold":   {inDescriptor: leaf},
	"metadata":          {inDescriptor: free},
	"unit":              {inRateLimit: leaf},
	"requests_per_unit": {inRateLimit: leaf},
	"unlimited":         {inRateLimit: leaf},
	"name":              {inRateLimit: leaf, inReplaces: leaf},
	"replaces":          {inRateLimit: inReplaces},
}

// weirKeys are our own. Where they have no meaning they are faults.
var weirKeys = map[string]map[place]place{
	"version":          {inRoot: leaf},
	"defaults":         {inRoot: inDefaults},
	"rate_limits":      {inDescriptor: inRateLimits},
	"algorithm":        {inRateLimit: leaf, inDefaults: leaf},
	"burst":            {inRateLimit: leaf},
	"unit_multiplier":  {inRateLimit: leaf},
	"overdraw":         {inRateLimit: leaf, inDefaults: leaf},
	"overdraw_cap":     {inRateLimit: leaf},
	"refunds":          {inRateLimit: leaf, inDefaults: leaf},
	"on_store_failure": {inRateLimit: inStoreFailure, inDefaults: inStoreFailure},
	"mode":             {inStoreFailure: leaf},
}

// laterKeys are designed but not built. They are told from unknown ones so
// that nobody looks for a typing error.
var laterKeys = func() map[string]bool {
	m := map[string]bool{}
	for _, k := range strings.Fields(`billing_time_zone negative_cache lease durability idempotency priority
		max_in_flight permit_ttl ledger privileged disclose fleet networks principals
		ceiling local_floor cap`) {
		m[k] = true
	}
	return m
}()

func (p place) ours() bool { return p == inDefaults || p == inStoreFailure || p == inRateLimits }

// meaning returns what stands below a key in a place, and whether the key has a
// meaning there.
func meaning(where map[place]place, in place) (below place, here bool) {
	below, here = where[in]
	if !here && in == inRateLimits {
		below, here = where[inRateLimit]
	}
	return below, here
}

// check reports what is wrong with the keys and scalars of one mapping and all
// below it.
func (r *reader) check(n *yaml.Node, in place, p *path) {
	r.checkKeys(n, p)
	all := r.fields(n)
	last := make(map[string]int, len(all))
	for i, f := range all {
		j, repeated := last[f.key]
		last[f.key] = i
		// That an explicit key overrides a merged one is what << is for.
		if repeated && !all[j].merged && in != nowhere {
			r.repeated(f, all[j], p)
		}
	}
	for i, f := range all {
		if last[f.key] == i {
			r.checkField(f, in, p.field(f.key))
		}
	}
}

func (r *reader) repeated(f, earlier field, p *path) {
	what, mend := "key %s is set twice; the last one wins", "remove one of the two"
	if f.merged {
		what, mend = "key %s is set before <<, which sets it again and wins", "move << to the top of the map"
	}
	if f.key == "rate_limit" || f.key == "metadata" {
		what = strings.TrimSuffix(what, " wins") + " wins field by field"
	}
	place := f.node
	if f.merged {
		place = earlier.node
	}
	r.warn(CodeRepeatedKey, at(place), p.field(f.key), "", mend, what, inQuotes(f.key))
}

// checkKeys reports keys that are no text.
func (r *reader) checkKeys(n *yaml.Node, p *path) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if isMerge(k) {
			sources, _ := mergeSources(n.Content[i+1])
			for _, m := range sources {
				r.checkKeys(m, p)
			}
			continue
		}
		if k = resolve(k); k.Kind != yaml.ScalarNode || r.bad[k] {
			continue
		}
		if s, err := readScalar(k); err == nil && s.kind != scalarText && s.kind != scalarTime {
			r.bad[k] = true
			r.fault(CodeKeyNotString, at(k), p, k.Value, "write the key as text, or put it between quotes",
				"config error, key is not of type string: %s", k.Value)
		}
	}
}

func (r *reader) checkField(f field, in place, p *path) {
	peer, isPeer := peerKeys[f.key]
	own, isOwn := weirKeys[f.key]
	switch {
	case isPeer:
		below, here := meaning(peer, in)
		if !here {
			if in.ours() {
				r.fault(CodeMisplacedKey, at(f.node), p, f.key, "move it to "+places(peer),
					"config error, key %s has no meaning in %s", inQuotes(f.key), placeNames[in])
				return
			}
			if in != nowhere {
				r.warn(CodeIgnoredKey, at(f.node), p, f.key, "move it to "+places(peer)+", or remove it",
					"key %s has no meaning in %s and is ignored", inQuotes(f.key), placeNames[in])
			}
			below = nowhere
			if f.key == "metadata" {
				below = free
			}
		}
		r.checkValue(f.value, below, p)
	case laterKeys[f.key]:
		r.fault(CodeNotSupported, at(f.node), p, f.key, "remove it until it is",
			"%s is not supported yet", inQuotes(f.key))
	case isOwn:
		below, here := meaning(own, in)
		if !here {
			r.fault(CodeMisplacedKey, at(f.node), p, f.key, "move it to "+places(own),
				"config error, key %s has no meaning in %s", inQuotes(f.key), placeNames[in])
			return
		}
		r.checkValue(f.value, below, p)
	default:
		r.fault(CodeUnknownKey, at(f.node), p, f.key, "correct its spelling or remove it",
			"config error, unknown key %s", inQuotes(f.key))
	}
}

// places lists where a key belongs, for a mend.
func places(where map[place]place) string {
	var names []string
	for p := inRoot; p < leaf; p++ {
		if _, ok := where[p]; ok {
			switch p {
			case inRoot:
				names = append(names, "the top of the file")
			case inDescriptor:
				names = append(names, "a descriptor")
			default:
				names = append(names, placeNames[p])
			}
		}
	}
	return strings.Join(names, " or ")
}

// checkValue reports scalars that no field can have and lists of something
// else than maps, and goes on below. Whether a scalar fits its own field is
// for the second pass.
func (r *reader) checkValue(v *yaml.Node, below place, p *path) {
	if below == free {
		return
	}
	if below == leaf {
		below = nowhere
	}
	switch v.Kind {
	case yaml.MappingNode:
		r.check(v, below, p)
	case yaml.SequenceNode:
		for i, c := range v.Content {
			c = resolve(c)
			if c.Kind == yaml.MappingNode {
				r.check(c, below, p.element(i))
				continue
			}
			r.bad[c] = true
			r.fault(CodeListOfScalars, at(c), p.element(i), c.Value, "make it a map, as '- key: …'",
				"config error, yaml file contains list of type other than map: %s", shown(c))
		}
	default:
		if s, err := readScalar(v); err == nil && (s.kind == scalarFloat || s.kind == scalarHuge) && !r.bad[v] {
			r.bad[v] = true
			r.fault(CodeScalar, at(v), p, v.Value, "use a whole number, or put text between quotes",
				"error checking config: %s is a number with a fraction or an exponent, or beyond 64 bits", inQuotes(v.Value))
		}
	}
}

// shown returns what a message says of a node.
func shown(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	return n.Value
}
