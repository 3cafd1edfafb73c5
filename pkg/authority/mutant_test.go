package authority

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// mutant is a fault in the script.
type mutant struct {
	name   string
	killer string // the scenario that must fail
	edits  [][2]string
}

// readMutants reads testdata/mutants.txt, which says how it is written.
func readMutants(t *testing.T) []mutant {
	t.Helper()
	text, err := os.ReadFile("testdata/mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []mutant
	for i, section := range strings.Split(string(text), "\n# ") {
		if i == 0 {
			continue // what the file says of itself
		}
		lines := strings.Split(strings.TrimRight(section, "\n"), "\n")
		m := mutant{name: lines[0]}
		for j, line := range lines[1:] {
			before := lines[j]
			mark, rest := line, ""
			if len(line) > 1 {
				mark, rest = line[:1], line[2:]
			}
			switch {
			case strings.HasPrefix(line, "killer: "):
				m.killer = strings.TrimPrefix(line, "killer: ")
			case mark == "-" && !strings.HasPrefix(before, "-"):
				m.edits = append(m.edits, [2]string{rest, ""})
			case mark == "-":
				m.edits[len(m.edits)-1][0] += "\n" + rest
			case mark == "+" && !strings.HasPrefix(before, "+"):
				m.edits[len(m.edits)-1][1] = rest
			case mark == "+":
				m.edits[len(m.edits)-1][1] += "\n" + rest
			default:
				t.Fatalf("mutants.txt, %s: %q is neither old nor new", m.name, line)
			}
		}
		all = append(all, m)
	}
	return all
}

// apply returns the script with the fault in it.
func (m mutant) apply(text string) (string, error) {
	for _, e := range m.edits {
		if n := strings.Count(text, e[0]); n != 1 {
			return "", fmt.Errorf("%q occurs %d times in the script, want once", e[0], n)
		}
		text = strings.Replace(text, e[0], e[1], 1)
	}
	return text, nil
}

// recorder notes the first assertion that fails.
type recorder struct{ first string }

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	if r.first == "" {
		r.first = fmt.Sprintf(format, args...)
	}
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// failure runs f on the lab and returns the first assertion that failed, "" for
// none, and the error of a script that failed instead of answering.
func (l *lab) failure(t *testing.T, f func()) (assertion string, broken error) {
	t.Helper()
	r := new(recorder)
	l.reporter, l.broken = r, nil
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
	l.reporter = t
	return r.first, l.broken
}

// TestMutantsAreKilled puts each fault of testdata/mutants.txt into the script
// and wants the scenario that is named there to notice it by an assertion. That
// the script as it is passes these scenarios is TestScript; it is tested here
// once more, since a scenario that always fails would kill everything. How many
// the random comparison would have noticed, briefly, is only logged.
func TestMutantsAreKilled(t *testing.T) {
	l := newLab(t)
	byName := map[string]scenario{}
	for _, s := range scenarios() {
		if _, twice := byName[s.name]; twice {
			t.Errorf("two scenarios are named %q", s.name)
		}
		byName[s.name] = s
	}
	run := func(s scenario) func() {
		return func() {
			l.clear()
			l.at(epoch)
			s.run(l)
		}
	}
	mutants := readMutants(t)
	for _, m := range mutants {
		if assertion, broken := l.failure(t, run(byName[m.killer])); assertion != "" || broken != nil {
			t.Fatalf("the script as it is fails %q: %s", m.killer, assertion)
		}
	}
	noticed := 0
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			text, err := m.apply(debitScript)
			if err != nil {
				t.Fatal(err)
			}
			l.reporter = t
			l.use(newScript(text))
			killer, ok := byName[m.killer]
			if !ok {
				t.Fatalf("there is no scenario %q", m.killer)
			}
			assertion, broken := l.failure(t, run(killer))
			switch {
			case broken != nil:
				t.Errorf("the script failed instead of answering, so nothing was asserted: %v", broken)
			case assertion == "":
				t.Errorf("it survives %q; killed by: %q", m.killer, l.killers(t, run))
			default:
				t.Logf("killed by %q: %s", m.killer, assertion)
			}
			if testing.Short() {
				return
			}
			if assertion, broken := l.failure(t, func() { newDifferential(l, 1).run(mutantRequests) }); assertion != "" || broken != nil {
				noticed++
			} else {
				t.Logf("%d random requests do not notice it", mutantRequests)
			}
		})
	}
	t.Logf("%d mutants, %d of them noticed by %d random requests too", len(mutants), noticed, mutantRequests)
}

// killers names the scenarios that notice the script in use.
func (l *lab) killers(t *testing.T, run func(scenario) func()) []string {
	t.Helper()
	var names []string
	for _, s := range scenarios() {
		if assertion, _ := l.failure(t, run(s)); assertion != "" {
			names = append(names, s.name)
		}
	}
	return slices.Clip(names)
}
