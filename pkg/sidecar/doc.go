// Package sidecar puts the parts of Weir together into one process. It decides
// nothing about requests.
package sidecar

// Build says which program runs.
type Build struct{ Version, Revision string }
