package sidecar

import (
	"strconv"
	"strings"
)

// Fault is one thing that is wrong with the settings: where it stands, what
// stands there, why that cannot be, and what to write instead.
type Fault struct {
	Place   string // file:line, the variable's or the flag's name; "" for a setting that is missing
	Path    string // the setting, as store.url
	Value   string // as written, credentials hidden
	Problem string
	Mend    string
}

// Error returns the fault on one line.
func (f Fault) Error() string {
	var b strings.Builder
	for _, part := range []string{f.Place, f.Path} {
		if part != "" && (part != f.Path || f.Place != flagOf(f.Path)) {
			b.WriteString(part)
			b.WriteString(": ")
		}
	}
	b.WriteString(f.Problem)
	if f.Value != "" {
		b.WriteString(": ")
		b.WriteString(strconv.Quote(f.Value))
	}
	if f.Mend != "" {
		b.WriteString("; ")
		b.WriteString(f.Mend)
	}
	return b.String()
}

// wrong is why a text cannot be the value of a setting, and the mend. Parsers
// return it; the loader adds place, path and value.
type wrong struct{ problem, mend string }

func (w *wrong) Error() string { return w.problem + "; " + w.mend }
