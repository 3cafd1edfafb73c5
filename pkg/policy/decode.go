package policy

import (
	"fmt"
	"math"
	"strings"

	"github.com/weir-rl/weir/pkg/limit"
	"go.yaml.in/yaml/v3"
)

// This file is the second pass: from nodes to what a file says. A key that is
// given several times, or by << and explicitly, is applied each time in order,
// so that a rate_limit is merged field by field, as yaml.v2 does.

// value is a field of a file: what it says, whether it says anything, where.
type value[T any] struct {
	is  T
	set bool
	bad bool // has been reported; that it is missing is no fault of its own
	at  position
}

type descriptor struct {
	at   position
	path *path

	key, value value[string]
	limit      *rateLimit
	list       value[[]*rateLimit] // rate_limits
	below      []*descriptor

	shadow, quota, detailed, valueToMetric, share value[bool]

	metadata value[map[string]any]
}

type rateLimit struct {
	at   position
	path *path
	bad  bool // no map; has been reported

	unit, name value[string]
	requests   value[uint32]
	unlimited  value[bool]
	replaces   []value[string]
	shadow     value[bool] // in a list only

	algorithm                      value[limit.Algorithm]
	burst, multiplier, overdrawCap value[uint32]
	overdraw                       value[limit.Overdraw]
	mode                           value[limit.Mode]
	refunds                        value[string]
}

// limits are those of the descriptor: its rate_limit, or its rate_limits.
func (d *descriptor) limits() []*rateLimit {
	if d.limit != nil {
		return append([]*rateLimit{d.limit}, d.list.is...)
	}
	return d.list.is
}

// defaults are a file's own for what its rules leave open.
type defaults struct {
	algorithm value[limit.Algorithm]
	overdraw  value[limit.Overdraw]
	mode      value[limit.Mode]
}

// root fills a File from its root node, which is nil for an empty file.
func (r *reader) root(f *File, n *yaml.Node) {
	if n == nil {
		return
	}
	n = resolve(n)
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		f.broken = true
		r.wrongType(n, nil, "a map with domain and descriptors")
		return
	}
	r.check(n, inRoot, nil)
	for _, x := range r.fields(n) {
		p := (*path)(nil).field(x.key)
		switch x.key {
		case "domain":
			f.domain = r.text(x, p)
		case "descriptors":
			f.descriptors = r.descriptors(x.value, p)
		case "version":
			f.version = r.version(x, p)
		case "defaults":
			r.defaults(&f.defaults, x.value, p)
		}
	}
}

func (r *reader) defaults(d *defaults, n *yaml.Node, p *path) {
	for _, x := range r.mapping(n, p, "a map of defaults") {
		p := p.field(x.key)
		switch x.key {
		case "algorithm":
			d.algorithm = r.algorithm(x, p)
		case "overdraw":
			d.overdraw = r.overdraw(x, p)
		case "on_store_failure":
			d.mode = r.mode(x, p)
		case "refunds":
			r.refunds(x, p)
		}
	}
}

// isNull says that a node says nothing; then a map or list is an empty one.
func isNull(n *yaml.Node) bool {
	if n.Kind != yaml.ScalarNode {
		return false
	}
	s, err := readScalar(n)
	return err == nil && s.kind == scalarNull
}

// mapping returns the fields of what must be a map.
func (r *reader) mapping(n *yaml.Node, p *path, want string) []field {
	if n.Kind == yaml.MappingNode {
		return r.fields(n)
	}
	if !isNull(n) {
		r.wrongType(n, p, want)
	}
	return nil
}

// sequence returns the elements of what must be a list.
func (r *reader) sequence(n *yaml.Node, p *path, want string) []*yaml.Node {
	if n.Kind == yaml.SequenceNode {
		return n.Content
	}
	if !isNull(n) {
		r.wrongType(n, p, want)
	}
	return nil
}

// element says whether an element of a list is the map that it must be. The
// first pass has reported one that is not, unless the list is overridden.
func (r *reader) element(n *yaml.Node, p *path, want string) bool {
	if n.Kind != yaml.MappingNode && !isNull(n) {
		r.wrongType(n, p, want)
	}
	return n.Kind == yaml.MappingNode
}

func (r *reader) descriptors(n *yaml.Node, p *path) []*descriptor {
	elements := r.sequence(n, p, "a list of descriptors")
	out := make([]*descriptor, 0, len(elements))
	for i, e := range elements {
		if r.element(resolve(e), p.element(i), "a descriptor: a map with key") {
			out = append(out, r.descriptor(resolve(e), p.element(i)))
		}
	}
	return out
}

func (r *reader) descriptor(n *yaml.Node, p *path) *descriptor {
	d := &descriptor{at: at(n), path: p}
	for _, x := range r.fields(n) {
		p := p.field(x.key)
		switch x.key {
		case "key":
			d.key = r.text(x, p)
		case "value":
			d.value = r.text(x, p)
		case "descriptors":
			d.below = r.descriptors(x.value, p)
		case "rate_limit":
			if isPlainNull(x.value) {
				d.limit = nil
				continue
			}
			if d.limit == nil {
				d.limit = &rateLimit{at: at(x.node), path: p}
			}
			d.limit.bad = d.limit.bad || x.value.Kind != yaml.MappingNode && !isNull(x.value)
			r.rateLimit(d.limit, x.value, p)
		case "rate_limits":
			d.list = r.rateLimits(x, p)
		case "shadow_mode":
			d.shadow = r.flag(x, p)
		case "quota_mode":
			d.quota = r.flag(x, p)
		case "detailed_metric":
			d.detailed = r.flag(x, p)
		case "value_to_metric":
			d.valueToMetric = r.flag(x, p)
		case "share_threshold":
			d.share = r.flag(x, p)
		case "metadata":
			r.metadata(&d.metadata, x, p)
		}
	}
	return d
}

func (r *reader) rateLimits(x field, p *path) value[[]*rateLimit] {
	v := value[[]*rateLimit]{at: at(x.node)}
	elements := r.sequence(x.value, p, "a list of limits, each as '- name: …'")
	v.bad = x.value.Kind != yaml.SequenceNode
	v.set = !v.bad
	for i, e := range elements {
		if e = resolve(e); r.element(e, p.element(i), "a limit: a map with name, unit and requests_per_unit") {
			l := &rateLimit{at: at(e), path: p.element(i)}
			r.rateLimit(l, e, l.path)
			v.is = append(v.is, l)
		} else {
			v.bad = true
		}
	}
	return v
}

func (r *reader) rateLimit(l *rateLimit, n *yaml.Node, p *path) {
	for _, x := range r.mapping(n, p, "a map with unit and requests_per_unit") {
		p := p.field(x.key)
		switch x.key {
		case "unit":
			l.unit = r.text(x, p)
		case "requests_per_unit":
			l.requests = r.number(x, p)
		case "unlimited":
			l.unlimited = r.flag(x, p)
		case "name":
			l.name = r.text(x, p)
		case "replaces":
			l.replaces = r.replaces(x, p)
		case "shadow_mode":
			l.shadow = r.flag(x, p)
		case "algorithm":
			l.algorithm = r.algorithm(x, p)
		case "burst":
			l.burst = r.number(x, p)
		case "unit_multiplier":
			l.multiplier = r.number(x, p)
		case "overdraw":
			l.overdraw = r.overdraw(x, p)
		case "overdraw_cap":
			l.overdrawCap = r.number(x, p)
		case "on_store_failure":
			l.mode = r.mode(x, p)
		case "refunds":
			l.refunds = r.refunds(x, p)
		}
	}
}

func (r *reader) replaces(x field, p *path) []value[string] {
	elements := r.sequence(x.value, p, "a list of names, each as '- name: …'")
	out := make([]value[string], 0, len(elements))
	for i, e := range elements {
		if e = resolve(e); !r.element(e, p.element(i), "a name: a map with name") {
			continue
		}
		name := value[string]{at: at(e)}
		for _, y := range r.fields(e) {
			if y.key == "name" {
				name = r.text(y, p.element(i).field("name"))
			}
		}
		out = append(out, name)
	}
	return out
}

// wrongType reports a value that its field cannot have, once.
func (r *reader) wrongType(n *yaml.Node, p *path, want string) {
	if r.bad[n] {
		return
	}
	what := n.Tag
	switch n.Kind {
	case yaml.MappingNode:
		what = "!!map"
	case yaml.SequenceNode:
		what = "!!seq"
	default:
		if s, err := readScalar(n); err == nil && n.Style&yaml.TaggedStyle == 0 {
			what = scalarTags[s.kind]
		}
		what += " `" + n.Value + "`"
	}
	into := want
	if i := strings.IndexByte(want, ':'); i > 0 {
		into = want[:i]
	}
	r.fault(CodeWrongType, at(n), p, n.Value, "write "+strings.TrimSpace(want[strings.IndexByte(want, ':')+1:]),
		"error loading config file: cannot unmarshal %s into %s", what, into)
}

// scalar returns the scalar of a field; it is not ok when there is none, which
// has been reported.
func (r *reader) scalar(x field, p *path, want string) (scalar, bool) {
	if x.value.Kind != yaml.ScalarNode {
		r.wrongType(x.value, p, want)
		return scalar{}, false
	}
	s, err := readScalar(x.value)
	return s, err == nil // an error has been reported by walk
}

func (r *reader) text(x field, p *path) value[string] {
	v := value[string]{at: at(x.value)}
	s, ok := r.scalar(x, p, "string: text")
	v.bad = !ok || r.bad[x.value]
	if !v.bad && s.kind != scalarNull {
		v.is, v.set = s.text, true
	}
	return v
}

func (r *reader) flag(x field, p *path) value[bool] {
	const want = "bool: true or false, without quotes"
	v := value[bool]{at: at(x.node)}
	s, ok := r.scalar(x, p, want)
	switch {
	case !ok || s.kind == scalarNull:
	case s.kind == scalarBool:
		v.is, v.set = s.yes, true
	default:
		r.wrongType(x.value, p, want)
	}
	v.bad = !v.set && (!ok || s.kind != scalarNull)
	return v
}

func (r *reader) number(x field, p *path) value[uint32] {
	const want = "uint32: a whole number from 0 to 4294967295, without quotes"
	v := value[uint32]{at: at(x.value)}
	s, ok := r.scalar(x, p, want)
	switch {
	case !ok || s.kind == scalarNull:
	case s.kind == scalarInt && s.num >= 0 && s.num <= math.MaxUint32:
		v.is, v.set = uint32(s.num), true
	case s.kind == scalarFloat && s.frac >= 0 && s.frac <= math.MaxUint32:
		// The first pass refuses it, unless a later value of the key overrides it.
		v.is, v.set = uint32(s.frac), true
	default:
		r.wrongType(x.value, p, want)
	}
	v.bad = !v.set && (!ok || s.kind != scalarNull)
	return v
}

func (r *reader) version(x field, p *path) value[uint64] {
	v := value[uint64]{at: at(x.value)}
	want := fmt.Sprintf("integer: a whole number from 1 to %d", limit.MaxVersion)
	s, ok := r.scalar(x, p, want)
	switch {
	case !ok || s.kind == scalarNull:
	case s.kind == scalarInt && s.num >= 1 && s.num <= limit.MaxVersion:
		v.is, v.set = uint64(s.num), true
	case s.kind == scalarInt:
		r.invalid(x, p, "version", fmt.Sprintf("1 to %d", limit.MaxVersion))
	default:
		r.wrongType(x.value, p, want)
	}
	return v
}

// invalid reports a value that is none of those which a field can have.
func (r *reader) invalid(x field, p *path, what, oneOf string) {
	if r.bad[x.value] {
		return
	}
	r.fault(CodeInvalidValue, at(x.value), p, x.value.Value, "use "+oneOf, "invalid %s %s", what, inQuotes(x.value.Value))
}

func (r *reader) later(x field, p *path, use string) {
	r.fault(CodeNotSupported, at(x.value), p, x.value.Value, "use "+use, "%s %s is not supported yet", x.key, inQuotes(x.value.Value))
}

func (r *reader) algorithm(x field, p *path) value[limit.Algorithm] {
	t, v := r.text(x, p), value[limit.Algorithm]{at: at(x.value)}
	if !t.set {
		return v
	}
	const use = "fixed_window, token_bucket, sliding_window or sliding_log"
	for _, a := range []limit.Algorithm{limit.FixedWindow, limit.TokenBucket, limit.SlidingWindow, limit.SlidingLog, limit.Concurrency} {
		if t.is != a.String() {
			continue
		}
		if a == limit.Concurrency {
			r.later(x, p, use)
		}
		v.is, v.set = a, true
		return v
	}
	r.invalid(x, p, "algorithm", use)
	return v
}

func (r *reader) overdraw(x field, p *path) value[limit.Overdraw] {
	t, v := r.text(x, p), value[limit.Overdraw]{at: at(x.value)}
	if !t.set {
		return v
	}
	if v.is, v.set = limit.ParseOverdraw(t.is); !v.set {
		r.invalid(x, p, "overdraw", "auto, on or off")
	}
	return v
}

func (r *reader) refunds(x field, p *path) value[string] {
	t := r.text(x, p)
	switch {
	case !t.set || t.is == "off":
	case t.is == "trusted":
		r.later(x, p, "off")
	default:
		r.invalid(x, p, "refunds", "off")
	}
	return t
}

// mode reads on_store_failure, a word or a map with the word as mode.
func (r *reader) mode(x field, p *path) value[limit.Mode] {
	if x.value.Kind == yaml.MappingNode {
		var v value[limit.Mode]
		for _, y := range r.fields(x.value) {
			if y.key == "mode" && y.value.Kind != yaml.MappingNode {
				v = r.mode(y, p.field("mode"))
			} else if y.key == "mode" {
				r.wrongType(y.value, p.field("mode"), "string: local, closed, open or exempt")
			}
		}
		return v
	}
	t, v := r.text(x, p), value[limit.Mode]{at: at(x.value)}
	if !t.set {
		return v
	}
	if v.is, v.set = limit.ParseMode(t.is); !v.set {
		r.invalid(x, p, "on_store_failure", "local, closed, open or exempt")
	}
	return v
}
