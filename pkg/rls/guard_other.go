//go:build !linux

package rls

// guarded runs do. Only Linux has locks for it; elsewhere a successor that
// starts within the same microseconds as its predecessor's unlink loses its
// socket.
func (l *lockFile) guarded(do func() error) error { return do() }
