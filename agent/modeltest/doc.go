// Package modeltest is the contract of agent.Model as tests, which every implementation is held to.
//
// Run is what all of them promise. RunOverHTTP is what those promise that ask a server: it has them talk to servers that
// answer well and badly in every way that the package could think of, in the words of the implementation's own protocol
// (Dialect), and looks at what they sent, to whom, and with whose key. Fuzz feeds them anything.
package modeltest
