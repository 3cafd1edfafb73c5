package authority

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1.
	_ "embed"
	"encoding/hex"
)

//go:embed scripts/debit.lua
var debitScript string

// debitSHA is the name under which a store caches the script. It names the
// code only: sidecars of several releases may run several scripts on one
// store, what they must agree on is limit.Layout.
var debitSHA = func() string {
	sum := sha1.Sum([]byte(debitScript)) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}()
