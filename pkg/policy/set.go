package policy

// Set is one compiled policy set: immutable, read by any number of goroutines.
type Set struct {
	version uint64
	domains map[string]*Domain
	rules   []*Rule
}

// Version is the set's version, 0 when its files have none (semantics S35).
func (s *Set) Version() uint64 { return s.version }

// Domain returns the domain of that name, or nil.
func (s *Set) Domain(name string) *Domain { return s.domains[name] }

// Rules lists all rules in file order. The slice is the set's own.
func (s *Set) Rules() []*Rule { return s.rules }

// Domain is one domain of a set.
type Domain struct {
	name string
}
