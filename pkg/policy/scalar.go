package policy

import (
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Policy files are YAML 1.1 as gopkg.in/yaml.v2 reads it, since that is what
// envoyproxy/ratelimit reads them with: a plain yes is a boolean, 007 is an
// octal number, 1_000 is a thousand. Where text belongs (key, value, domain,
// name) a scalar keeps the file's own spelling whatever it looks like, with
// two exceptions: null and ~ are no text at all, and !!binary is decoded. What
// a scalar looks like matters only where a number or a boolean belongs, and to
// refuse numbers with a fraction anywhere. yaml.v3, which gives us lines and
// columns, resolves by YAML 1.2 in part, so its own opinion (Node.Tag) is used
// for explicit tags only.

// scalarKind is what a scalar looks like.
type scalarKind uint8

const (
	scalarNull scalarKind = iota
	scalarText
	scalarBool
	scalarInt
	scalarHuge  // above the largest int64; the peer refuses it everywhere
	scalarFloat // the peer refuses it everywhere but in metadata
	scalarTime  // text that looks like a date
)

var scalarTags = [...]string{"!!null", "!!str", "!!bool", "!!int", "!!int", "!!float", "!!timestamp"}

// scalar is one resolved scalar.
type scalar struct {
	kind scalarKind
	text string // the file's own, or what !!binary decodes to
	num  int64
	huge uint64
	frac float64
	yes  bool
}

// words are the plain scalars that are neither text nor numbers.
var words = func() map[string]scalar {
	m := map[string]scalar{}
	for _, w := range strings.Fields("~ null Null NULL") {
		m[w] = scalar{kind: scalarNull}
	}
	m[""] = scalar{kind: scalarNull}
	for _, w := range strings.Fields("y Y yes Yes YES true True TRUE on On ON") {
		m[w] = scalar{kind: scalarBool, yes: true}
	}
	for _, w := range strings.Fields("n N no No NO false False FALSE off Off OFF") {
		m[w] = scalar{kind: scalarBool}
	}
	for _, w := range strings.Fields(".nan .NaN .NAN .inf .Inf .INF +.inf +.Inf +.INF -.inf -.Inf -.INF") {
		f, _ := strconv.ParseFloat(strings.Replace(w, ".", "", 1), 64)
		m[w] = scalar{kind: scalarFloat, frac: f}
	}
	return m
}()

var decimalFloat = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)

// plainScalar returns what an unquoted scalar looks like. Dates are looked for
// only when no explicit tag asks for something else.
func plainScalar(in string, dates bool) scalar {
	if s, ok := words[in]; ok {
		s.text = in
		return s
	}
	text := scalar{kind: scalarText, text: in}
	switch c := in[0]; {
	case c == '.':
		if f, err := strconv.ParseFloat(in, 64); err == nil {
			return scalar{kind: scalarFloat, text: in, frac: f}
		}
		return text
	case c != '+' && c != '-' && (c < '0' || c > '9'):
		return text
	}
	if dates && isDate(in) {
		return scalar{kind: scalarTime, text: in}
	}
	digits := strings.ReplaceAll(in, "_", "")
	if n, err := strconv.ParseInt(digits, 0, 64); err == nil {
		return scalar{kind: scalarInt, text: in, num: n}
	}
	if n, err := strconv.ParseUint(digits, 0, 64); err == nil {
		return scalar{kind: scalarHuge, text: in, huge: n}
	}
	if decimalFloat.MatchString(digits) {
		if f, err := strconv.ParseFloat(digits, 64); err == nil {
			return scalar{kind: scalarFloat, text: in, frac: f}
		}
	}
	if bits, ok := strings.CutPrefix(digits, "0b"); ok {
		// A sign after the prefix is not Go's form of a number, but yaml.v2 reads it.
		if n, err := strconv.ParseInt(bits, 2, 64); err == nil {
			return scalar{kind: scalarInt, text: in, num: n}
		}
	}
	return text
}

var dateForms = [...]string{
	"2006-1-2T15:4:5.999999999Z07:00", "2006-1-2t15:4:5.999999999Z07:00", "2006-1-2 15:4:5.999999999", "2006-1-2",
}

func isDate(s string) bool {
	if len(s) < 5 || s[4] != '-' || strings.Trim(s[:4], "0123456789") != "" {
		return false
	}
	for _, f := range dateForms {
		if _, err := time.Parse(f, s); err == nil {
			return true
		}
	}
	return false
}

// quotedStyles are the styles whose scalars are text unless a tag says otherwise.
const quotedStyles = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle

// readScalar resolves a scalar node.
func readScalar(n *yaml.Node) (scalar, error) {
	text := scalar{kind: scalarText, text: n.Value}
	if n.Style&yaml.TaggedStyle == 0 {
		if n.Style&quotedStyles != 0 {
			return text, nil
		}
		return plainScalar(n.Value, true), nil
	}
	s := plainScalar(n.Value, n.Tag == "!!timestamp")
	fits := false
	switch n.Tag {
	case "!!null":
		fits = s.kind == scalarNull
	case "!!bool":
		fits = s.kind == scalarBool
	case "!!int":
		fits = s.kind == scalarInt || s.kind == scalarHuge
	case "!!float":
		switch s.kind {
		case scalarInt:
			return scalar{kind: scalarFloat, text: n.Value, frac: float64(s.num)}, nil
		case scalarFloat:
			fits = true
		}
	case "!!timestamp":
		fits = s.kind == scalarTime
	case "!!binary":
		data, err := base64.StdEncoding.DecodeString(n.Value)
		if err != nil {
			return scalar{}, errors.New("!!binary value contains invalid base64 data")
		}
		return scalar{kind: scalarText, text: string(data)}, nil
	default: // !!str, and tags that mean nothing here
		return text, nil
	}
	if !fits {
		return scalar{}, fmt.Errorf("cannot decode %s `%s` as a %s", scalarTags[s.kind], n.Value, n.Tag)
	}
	return s, nil
}

// isPlainNull says that a node is a null that resets a pointer; the peer reads
// Null and NULL as nulls too, but not there.
func isPlainNull(n *yaml.Node) bool {
	if n.Kind != yaml.ScalarNode {
		return false
	}
	if n.Style&yaml.TaggedStyle != 0 {
		return n.Tag == "!!null"
	}
	return n.Style&quotedStyles == 0 && (n.Value == "" || n.Value == "~" || n.Value == "null")
}

// isMerge says that a mapping's key merges other mappings into it.
func isMerge(n *yaml.Node) bool {
	if n.Kind != yaml.ScalarNode || n.Value != "<<" {
		return false
	}
	if n.Style&yaml.TaggedStyle != 0 {
		return n.Tag == "!!merge"
	}
	return n.Style&quotedStyles == 0
}
