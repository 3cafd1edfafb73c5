package policy

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// The bounds of one file. They are far above what anybody writes; without
// them a small file of nested aliases takes all memory.
const (
	MaxFileSize = 16 << 20  // bytes; a ConfigMap has at most 1 MiB
	MaxDepth    = 128       // nested maps and lists; a level of descriptors is two
	MaxNodes    = 2_000_000 // keys, values, maps and lists, each alias counted as what it stands for
)

// File is one parsed policy file: what it says, and the faults found so far.
// It is immutable; Compile may be given the same File again and again.
type File struct {
	Name string

	sum    [sha256.Size]byte
	faults Faults
	broken bool // not even a tree; whatever else is missing is no fault of its own
	found  bool // below a directory that was named, not named itself

	domain      value[string]
	version     value[uint64]
	defaults    defaults
	descriptors []*descriptor
}

// Faults returns what parsing found. Compile reports it again, with the rest.
func (f *File) Faults() Faults { return f.faults }

// Parse reads the bytes of one policy file. It always returns a File, which
// carries its faults to Compile, so that all faults of all files are reported
// together. The name is what faults show.
func Parse(name string, data []byte) *File {
	f := &File{Name: name, sum: sha256.Sum256(data)}
	r := &reader{report: report{file: name}}
	if root, ok := r.tree(data); ok {
		r.root(f, root)
	} else {
		f.broken = true
	}
	f.faults = r.sorted()
	return f
}

// unreadable is the File of a path that could not be read.
func unreadable(name string, c Code, mend, message string) *File {
	r := &report{file: name}
	r.fault(c, position{}, nil, "", mend, "%s", message)
	return &File{Name: name, sum: sha256.Sum256([]byte("\x00" + message)), faults: r.faults, broken: true}
}

// reader turns the nodes of one file into a File.
type reader struct {
	report
	nodes int
	open  map[*yaml.Node]bool // the anchored nodes around the current one
	bad   map[*yaml.Node]bool // already reported, so the second pass is silent on them
}

// tree parses the first document, and holds it to the bounds. The node that it
// returns is nil for a file without content.
func (r *reader) tree(data []byte) (*yaml.Node, bool) {
	if len(data) > MaxFileSize {
		r.fault(CodeFileTooLarge, position{1, 1}, nil, "", "split it into several files of one domain, merged with policy.merge_domains (--merge-domains of check)",
			"file is larger than %d bytes", MaxFileSize)
		return nil, false
	}
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	switch err := decodeDocument(dec, &doc); {
	case errors.Is(err, io.EOF):
		return nil, true
	case err != nil:
		at, text := syntaxError(err, data)
		mend := "make it valid YAML"
		if line := tabbedLine(data, at.line); line > 0 {
			mend = fmt.Sprintf("indent line %d with spaces; YAML allows no tabs there", line)
		}
		r.fault(CodeSyntax, at, nil, "", mend, "error loading config file: %s", text)
		return nil, false
	}
	if len(doc.Content) == 0 {
		return nil, true
	}
	root := doc.Content[0]
	r.open, r.bad = map[*yaml.Node]bool{}, map[*yaml.Node]bool{}
	if !r.walk(root, 1, nil) {
		return nil, false
	}
	var second yaml.Node
	if err := decodeDocument(dec, &second); err == nil && len(second.Content) > 0 && !isPlainNull(second.Content[0]) {
		r.warn(CodeSecondDocument, at(second.Content[0]), nil, "", "put it into a file of its own",
			"only the first YAML document of a file is used; this one is dropped")
	}
	return root, true
}

// decodeDocument reads the next document. The YAML library reports some states
// that it did not expect by a panic; for a program that serves while it reads
// a file, that is a file it cannot read, like any other.
func decodeDocument(dec *yaml.Decoder, into *yaml.Node) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("yaml: %v", p)
		}
	}()
	return dec.Decode(into)
}

var syntaxLine = regexp.MustCompile(`^yaml: line (\d+): `)

// syntaxError finds the place of a syntax error, which the YAML library gives
// as text, and for unreadable characters not at all.
func syntaxError(err error, data []byte) (position, string) {
	text := err.Error()
	if m := syntaxLine.FindStringSubmatch(text); m != nil {
		if line, err := strconv.Atoi(m[1]); err == nil && line > 0 {
			return position{line, 1}, text
		}
	}
	line, column := 1, 1
	for len(data) > 0 {
		c, n := utf8.DecodeRune(data)
		if c == utf8.RuneError && n == 1 || c < ' ' && !strings.ContainsRune("\t\r\n", c) || c == 0x7f {
			return position{line, column}, text
		}
		column++
		if c == '\n' {
			line, column = line+1, 1
		}
		data = data[n:]
	}
	return position{1, 1}, text
}

// tabbedLine returns the line with a tab in its indentation that a syntax error
// at a line is about, 0 when there is none. The YAML library names that line or
// the one before.
func tabbedLine(data []byte, at int) int {
	lines := bytes.SplitN(data, []byte("\n"), at+2)
	for n := at; n <= at+1 && n <= len(lines); n++ {
		text := lines[n-1]
		if indent := text[:len(text)-len(bytes.TrimLeft(text, " \t"))]; bytes.ContainsRune(indent, '\t') {
			return n
		}
	}
	return 0
}

// walk holds the tree below a node to the bounds, and says whether to go on.
// It reports what yaml.v2 cannot read wherever it stands, also below keys that
// nobody looks at: tags that do not fit, keys that are maps, bad merges.
func (r *reader) walk(n *yaml.Node, depth int, p *path) bool {
	if n.Kind == yaml.AliasNode {
		if r.open[n.Alias] {
			r.fault(CodeAliasLoop, at(n), p, n.Value, "write out what the alias should stand for",
				"error loading config file: yaml: anchor %s value contains itself", inQuotes(n.Value))
			return false
		}
		return r.walk(n.Alias, depth, p)
	}
	r.nodes++
	if r.nodes > MaxNodes {
		r.fault(CodeTooManyNodes, at(n), nil, "", "split the file, or use fewer aliases",
			"document contains excessive aliasing or is too large: more than %d nodes", MaxNodes)
		return false
	}
	if depth > MaxDepth {
		r.fault(CodeTooDeep, at(n), nil, "", "use fewer levels", "maps and lists are nested deeper than %d", MaxDepth)
		return false
	}
	if n.Anchor != "" {
		r.open[n] = true
		defer delete(r.open, n)
	}
	switch n.Kind {
	case yaml.ScalarNode:
		if _, err := readScalar(n); err != nil {
			r.once(n, CodeBadTag, p, "remove the tag, or correct the value", err.Error())
		}
	case yaml.SequenceNode:
		for i, c := range n.Content {
			if !r.walk(c, depth+1, p.element(i)) {
				return false
			}
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			r.mapKey(k, v, p)
			if !r.walk(k, depth+1, p) || !r.walk(v, depth+1, p.field(resolve(k).Value)) {
				return false
			}
		}
	}
	return true
}

func (r *reader) mapKey(k, v *yaml.Node, p *path) {
	if isMerge(k) {
		if _, ok := mergeSources(v); !ok {
			r.once(k, CodeBadMerge, p, "merge a map, or a list of maps, by aliases",
				"map merge requires map or sequence of maps as the value")
		}
	} else if resolve(k).Kind != yaml.ScalarNode {
		r.once(k, CodeKeyNotString, p, "write the key as text", "invalid map key: a key is a map or a list")
	}
}

// once reports a node that cannot be read, however many aliases lead to it.
func (r *reader) once(n *yaml.Node, c Code, p *path, mend, why string) {
	if !r.bad[n] {
		r.bad[n] = true
		r.fault(c, at(n), p, n.Value, mend, "error loading config file: yaml: %s", why)
	}
}

func at(n *yaml.Node) position { return position{max(1, n.Line), max(1, n.Column)} }

// resolve follows an alias to what it stands for.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// field is one key of a mapping and its value.
type field struct {
	key    string
	node   *yaml.Node // the key's
	value  *yaml.Node
	merged bool // came by <<
}

// fields returns the keys of a mapping in the order in which yaml.v2 applies
// them: << is expanded where it stands, the last of several equal keys wins.
// Keys that are no text are left out.
func (r *reader) fields(n *yaml.Node) []field {
	out := make([]field, 0, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], resolve(n.Content[i+1])
		if isMerge(k) {
			sources, _ := mergeSources(n.Content[i+1])
			for _, m := range sources {
				for _, f := range r.fields(m) {
					f.merged = true
					out = append(out, f)
				}
			}
			continue
		}
		k = resolve(k)
		if k.Kind != yaml.ScalarNode {
			continue
		}
		if s, err := readScalar(k); err == nil && (s.kind == scalarText || s.kind == scalarTime) {
			out = append(out, field{key: s.text, node: k, value: v})
		}
	}
	return out
}

// mergeSources returns the mappings that << merges, in the order in which they
// are applied: of a list, the first has the last word. It is not ok when there
// is something else among them.
func mergeSources(raw *yaml.Node) (sources []*yaml.Node, ok bool) {
	v := resolve(raw)
	if v.Kind == yaml.MappingNode {
		return []*yaml.Node{v}, true
	}
	// An alias to a list is no list of maps for yaml.v2.
	if raw.Kind != yaml.SequenceNode {
		return nil, false
	}
	for i := len(v.Content) - 1; i >= 0; i-- {
		m := resolve(v.Content[i])
		if m.Kind != yaml.MappingNode {
			return nil, false
		}
		sources = append(sources, m)
	}
	return sources, true
}
