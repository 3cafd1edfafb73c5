package sidecar

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const envPrefix = "WEIR_"

// Inputs are the places that settings come from, the weakest first: a file,
// the environment, flags.
type Inputs struct {
	File string // the file's name, for places; "" when there is no file
	Data []byte // what the file holds

	// Environ is the environment as os.Environ returns it. All of it is
	// needed, since a misspelt variable is a fault.
	Environ []string

	// Flags hold the values of setting flags by path, in the order given.
	Flags map[string][]string
}

// Settings are a Config and where each of its values came from.
type Settings struct {
	Config  Config
	origins map[string]string
}

// originDefault is the origin of what nobody set.
const originDefault = "default"

// Origin says where the value of a setting came from: file:line, a variable, a
// flag, or "default".
func (s *Settings) Origin(path string) string {
	if o := s.origins[path]; o != "" {
		return o
	}
	return originDefault
}

// Defaults returns a Config of default values. It still lacks what has none.
func Defaults() Config {
	var c Config
	for i := range table {
		s := &table[i]
		if s.List || s.Default == "" {
			continue
		}
		if err := s.set(&c, []string{s.Default}); err != nil {
			panic(fmt.Sprintf("the default of %s: %v", s.Path, err))
		}
	}
	return c
}

// Load puts the settings together. It is pure: it reads nothing but its
// argument. With faults the settings are what could be understood, good only
// for finding more faults.
func Load(in Inputs) (*Settings, []Fault) {
	l := loader{settings: Settings{Config: Defaults(), origins: map[string]string{}}}
	if in.File != "" {
		l.file(in.File, in.Data)
	}
	l.environ(in.Environ)
	l.flags(in.Flags)
	if !l.unread {
		l.check()
	}
	return &l.settings, l.faults
}

type loader struct {
	settings Settings
	faults   []Fault
	unread   bool // the file as a whole; nobody knows what is missing then
}

func (l *loader) fault(place, path, value, problem, mend string) {
	l.faults = append(l.faults, Fault{Place: place, Path: path, Value: redactText(value), Problem: problem, Mend: mend})
}

// check adds what no single value shows, but not of settings that have a
// fault already: "required" says nothing new of one that was misspelt.
func (l *loader) check() {
	faulty := map[string]bool{}
	for _, f := range l.faults {
		faulty[f.Path] = true
	}
	for _, f := range l.settings.Config.Check() {
		if faulty[f.Path] {
			continue
		}
		if o := l.settings.Origin(f.Path); o != originDefault {
			f.Place = o
		}
		l.faults = append(l.faults, f)
	}
}

func (l *loader) set(s *Setting, items []string, place string) {
	err := s.set(&l.settings.Config, items)
	if err == nil {
		l.settings.origins[s.Path] = place
		return
	}
	problem, mend := err.Error(), ""
	if w := (*wrong)(nil); errors.As(err, &w) {
		problem, mend = w.problem, w.mend
	}
	if place == s.Env() && len(items) == 1 && items[0] == "" {
		problem, mend = "the variable is set but empty, "+problem, mend+", or unset the variable"
	}
	l.fault(place, s.Path, s.hide(strings.Join(items, ",")), problem, mend)
}

// yamlLine matches how the YAML parser words the place of a fault.
var yamlLine = regexp.MustCompile(`(?s)^line (\d+): (.*)$`)

// file reads YAML as nodes, which know their line and the text as written.
func (l *loader) file(name string, data []byte) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF): // an empty file sets nothing
		return
	case err != nil:
		place, problem, mend := name, strings.TrimPrefix(err.Error(), "yaml: "), "write valid YAML"
		if m := yamlLine.FindStringSubmatch(problem); m != nil {
			place, problem = name+":"+m[1], m[2]
			if line := tabbedLine(data, m[1]); line > 0 {
				mend = fmt.Sprintf("indent line %d with spaces; YAML allows no tabs there", line)
			}
		}
		l.unread = true
		l.fault(place, "", "", problem, mend)
		return
	case len(doc.Content) == 0:
		return
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		l.fault(name, "", "", "more than one YAML document", "keep one")
	}
	l.section(name, "", doc.Content[0])
}

// tabbedLine returns the line with a tab in its indentation that a syntax error
// is about, 0 when there is none. The YAML library names that line or the one
// before.
func tabbedLine(data []byte, at string) int {
	first, err := strconv.Atoi(at)
	if err != nil {
		return 0
	}
	n := 0
	for line := range bytes.Lines(data) {
		n++
		indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
		if (n == first || n == first+1) && bytes.ContainsRune(indent, '\t') {
			return n
		}
	}
	return 0
}

func (l *loader) section(name, path string, n *yaml.Node) {
	place := func(n *yaml.Node) string { return fmt.Sprintf("%s:%d", name, n.Line) }
	if isNull(n) { // a section whose every line is commented out
		return
	}
	if n.Kind != yaml.MappingNode {
		l.unread = l.unread || path == ""
		l.fault(place(n), path, n.Value, "not a section", "write its settings under it, indented")
		return
	}
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		p := key.Value
		if path != "" {
			p = path + "." + key.Value
		}
		if line, ok := first[key.Value]; ok {
			l.fault(place(key), p, "", fmt.Sprintf("set twice, first in line %d", line), "keep one")
			continue
		}
		first[key.Value] = key.Line
		switch s := lookup(p); {
		case s != nil:
			l.value(place(value), s, value)
		case isSection(p):
			l.section(name, p, value)
		default:
			l.fault(place(key), p, "", "unknown setting", suggest(p, paths()))
		}
	}
}

func (l *loader) value(place string, s *Setting, n *yaml.Node) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case isNull(n):
		l.fault(place, s.Path, "", "no value", "write one, or leave the line out")
	case n.Kind == yaml.ScalarNode:
		l.set(s, []string{n.Value}, place)
	case n.Kind == yaml.SequenceNode && s.List:
		items := make([]string, 0, len(n.Content))
		for _, item := range n.Content {
			if item.Kind != yaml.ScalarNode || isNull(item) {
				l.fault(place, s.Path, "", "a list within the list, or a section, or nothing", "write texts only")
				return
			}
			items = append(items, item.Value)
		}
		l.set(s, items, place)
	default:
		l.fault(place, s.Path, "", "a list or a section where a "+s.Type+" belongs", "write one value")
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func (l *loader) environ(environ []string) {
	for _, kv := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, envPrefix) {
			continue
		}
		i := slices.IndexFunc(table, func(s Setting) bool { return s.Env() == name })
		switch {
		case i >= 0:
			l.set(&table[i], table[i].split(value), name)
		case !serviceLink.MatchString(name):
			l.fault(name, "", "", "unknown variable", suggest(name, variables()))
		}
	}
}

// serviceLink matches the variables that Kubernetes gives every pod for a
// Service whose name begins with "weir". They are nobody's mistake.
var serviceLink = regexp.MustCompile(
	`^WEIR_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

func (l *loader) flags(flags map[string][]string) {
	for i := range table {
		s := &table[i]
		values, ok := flags[s.Path]
		if !ok || len(values) == 0 {
			continue
		}
		if !s.List {
			l.set(s, values[len(values)-1:], s.Flag()) // the last one counts, as usual
			continue
		}
		var items []string
		for _, v := range values {
			items = append(items, s.split(v)...)
		}
		l.set(s, items, s.Flag())
	}
}

// split returns the items of a variable or flag.
func (s *Setting) split(value string) []string {
	if !s.List {
		return []string{value}
	}
	if value == "" {
		return nil
	}
	return strings.Split(value, ",")
}

// suggest is the mend for an unknown name: the known one that is nearest.
func suggest(name string, known []string) string {
	best, least := "", 1+len(name)/3
	for _, k := range known {
		if d := distance(name, k); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return "did you mean " + best + "?"
	}
	return "docs/CONFIGURATION.md lists them all"
}

// distance is the number of letters to insert, remove or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
