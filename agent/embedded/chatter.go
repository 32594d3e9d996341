package embedded

// chatter are the stems of words that people wrap a question in, verbs and adjectives for the most part. They are looked for like
// all others; where the agent's texts do not use them, they hardly count as something that the agent does not know.
//
// What is done with a thing is worded in many ways (a piece tears, rips, comes apart); what the thing is, in few. So it is the
// nouns, names and numbers that say whether a message is on the agent's subject, and none of those stands here.
var chatter = stems(chatterWords)

const chatterWords = `
	able accept accepted accidentally achieve actual add advise afford afraid again ago agree aim allow allowed almost already alright alternative
	although always amaze annoy anybody anyhow anytime anyway anywhere apart apologise appear apply appreciate approve argue around arrange arrive
	assume attach attempt automatic available avoid aware away awful back bad badly based bear beautiful become became begin began begun behave
	believe belong bend bent best better big bigger biggest bit bite blow born borrow bother break broke brief bright bring brought build built
	burn busy buy bought call calm came cancel capable care careful carry case catch caught cause certain change cheap check choose chose chosen
	claim clean clear close collect combine common compare complain complete concern confirm confuse connect consider contain continue convert
	convince cool copy correct count couple cover crazy create current curious cut damage dare deal dealt decide decline deep definite delay deny
	depend describe deserve detailed different difficult direct disappear disappoint discover discuss dislike distant divide double doubt drag draw
	drawn dress drop dropped dry due eager early earn easy either elsewhere embarrass empty enable enjoy enough enquire ensure enter entire equal
	especially even ever every everybody everyone everything everywhere exact examine excellent except excite exist expand expect expensive experience
	expire explore extend extra face fade fail fair fall fallen fell fake familiar fancy fantastic favourite favorite fear feel felt fetch few figure
	fill final find fine finish first fit fix fold follow forbid force forever forget forgot forgotten forward found free frequent fresh full further
	gain gave general gentle genuine glad gone good grab great greet grow grew grown guess half handle hang happen happy hard harm hate hear heard
	heavy help helpful hesitate hidden hide hit hold held honest hope huge hurry hurt identify ignore imagine immediate important impossible improve
	inform inside insist inspect instead intend interested introduce invite involve join jump keep kept kick kind knew known lack large last late
	later latest laugh lay lead lean leap learn learnt least leave left lend lent less lie lift light likely limited listen live lose lost lot lots
	loud love lovely low lucky main maintain make made manage matter mean meant measure meet met mention mess mind miss mistake mix modern moment
	month months move multiple must narrow near necessary need neither never new next nice nobody none normal nothing notice obtain obvious occur odd offer
	offend okay old open operate organise otherwise ought owe owned part particular pass past patient pay paid perfect perhaps permit person people
	persuade pick picked plain plan please pleased plenty point poor popular positive post prefer prepare present press pretend pretty prevent previous
	private probable problem proceed produce promise promised proper protect proud prove provide pull purchase pure push put question quick quiet quite
	raise ran rapid rather reach react read ready real realise receive recent recognise recommend recover reduce refer refuse regret regular reject relate
	relax release rely remain remember remind remove replace reply report represent request require resolve respond rest reveal rid right ring rang rip
	rise roll rough round rub ruin run rush sad safe said same satisfied save saw scare scratch scratchy seal search second secure seem seen select sell
	sold send sent separate serious serve set settle several severe shake share sharp shine short shortly shout shut sick similar simple since sit situation
	skip slight slip slow small smaller smart smell smooth soft solve somebody somehow someone sometimes somewhere soon sorry sort sought sound spare
	speak special specific spend spent spill split spoil spoke spot spread stand start stay steal stick stuck still stolen stop straight strange strict
	strong struggle stuff stupid submit succeed suddenly suffer suggest suit suitable suppose sure surely surprise suspect swap swear switch taken talk taste
	teach tear tore torn terrible test therefore thick thin thought threw thrown throw tight till tiny tired together told tonight took top total touch
	tough trade transfer treat tried trouble true trust try trying turn twice type typical ugly unable understand understood undo unfortunately unhappy
	unless unlike unpack upgrade upset urgent used useful useless using usual valid various vary verify via visible visit wait wake walk wanna warm warn
	waste watch weak wear worn wore week weeks weird welcome well went wet whatever whenever wherever whether whole whose wide willing wish within without
	wonderful wore work worried worry worse worst worth wrap write written wrote wrong year years yesterday yet`
