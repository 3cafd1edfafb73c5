package policy

import "crypto/sha256"

// Set is one compiled policy set: immutable, read by any number of goroutines.
type Set struct {
	version uint64
	digest  [sha256.Size]byte
	domains map[string]*Domain
	order   []*Domain // in file order
	rules   []*Rule
}

// Version is the set's version, 0 when its files have none (semantics S35).
func (s *Set) Version() uint64 { return s.version }

// Digest covers the names and contents of the set's files: two sets with one
// digest and the same Options are the same.
func (s *Set) Digest() [sha256.Size]byte { return s.digest }

// Domains lists all domains in file order. The slice is the set's own.
func (s *Set) Domains() []*Domain { return s.order }

// Domain returns the domain of that name, or nil.
func (s *Set) Domain(name string) *Domain { return s.domains[name] }

// Rules lists all rules in file order. The slice is the set's own.
func (s *Set) Rules() []*Rule { return s.rules }

// Domain is one domain of a set.
type Domain struct {
	name  string
	root  node
	rules []*Rule
}

// Name is the domain's name.
func (d *Domain) Name() string { return d.name }
